"""The measured process of :mod:`bench.waiting`: tasks that wait for their RayJob to change. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from typing import Any

import psutil

from airflow_raytpu.backends.kuberay import watch
from airflow_raytpu.backends.kuberay.api import EVENTS, PODS, RAYCLUSTERS, RAYJOBS, RAYSERVICES, WORKLOADS, KubeApi
from airflow_raytpu.backends.kuberay.watch import Rhythm, Store
from tests.doubles.kubernetes.access import TestAccess

_KINDS = (RAYJOBS, RAYCLUSTERS, RAYSERVICES, PODS, EVENTS, WORKLOADS)
_LAG_EVERY_S = 0.02
_QUIET_S = 16.0
_BUSY_S, _RATE, _GRACE_S = 16.0, 20.0, 2.0
_HASTE, _HASTE_S = 60.0, 12.0
"""To see an hour's renewals without waiting for an hour: everything that is timed comes so much sooner."""


class Server:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, jobs: int) -> Server:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.waiting_server", str(jobs)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )

    async def heard(self) -> dict[str, Any]:
        assert self._process.stdout
        return dict(json.loads(await self._process.stdout.readline()))

    def say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")

    async def count(self, what: str = "requests") -> int:
        self.say("count")
        return int((await self.heard())[what])

    async def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()


class Tasks:
    """Each with a client and shares of its own, as each deferred task of Airflow has them."""

    def __init__(self, access: TestAccess, count: int, rhythm: Rhythm) -> None:
        self.apis = [KubeApi(access, "default") for _ in range(count)]
        self.stores = [[watch.shared(api, kind, rhythm=rhythm) for kind in _KINDS] for api in self.apis]
        self.late: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await asyncio.gather(*(store.synced() for store in self.stores[0]))
        self._tasks = [asyncio.create_task(self._wait(f"job-{n}", each[0])) for n, each in enumerate(self.stores)]

    async def _wait(self, name: str, store: Store) -> None:
        while True:
            mark = store.mark(("", name))
            await store.changed(mark)
            found = store.get(name)
            assert found
            self.late.append(time.monotonic() - found["status"]["touched"])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for api, stores in zip(self.apis, self.stores, strict=True):
            for store in stores:
                await store.close()
            await api.close()


async def _lags(lags: list[float]) -> None:
    while True:
        began = time.monotonic()
        await asyncio.sleep(_LAG_EVERY_S)
        lags.append(time.monotonic() - began - _LAG_EVERY_S)


async def _phase(seconds: float) -> tuple[list[float], list[float]]:
    """CPU seconds per minute of the two halves, and the loop's lags."""
    lags: list[float] = []
    looking = asyncio.create_task(_lags(lags))
    halves = []
    for _ in range(2):
        began = time.process_time()
        await asyncio.sleep(seconds / 2)
        halves.append((time.process_time() - began) * 60 / (seconds / 2))
    looking.cancel()
    return halves, lags


async def main(count: int) -> None:
    server = await Server.start(count)
    place = await server.heard()
    access = TestAccess(place["url"], place["token"])
    found: dict[str, Any] = {}
    before = _memory()
    tasks = Tasks(access, count, Rhythm())
    await tasks.start()
    found["memory_mb"] = _memory() - before
    found["requests_to_start"] = await server.count()
    found["cpu_quiet"], found["lag_quiet"] = await _phase(_QUIET_S)
    found["requests_quiet"] = await server.count() - found["requests_to_start"]
    server.say(f"touch {_RATE} {_BUSY_S - 1}")
    found["cpu_busy"], found["lag_busy"] = await _phase(_BUSY_S)
    await asyncio.sleep(_GRACE_S)
    found["late"] = tasks.late
    found["missed"] = await server.count("touched") - len(tasks.late)
    await tasks.close()

    real = Rhythm()
    hasty = Rhythm(watch=real.watch / _HASTE, silence=real.silence, resync=real.resync / _HASTE)
    tasks = Tasks(access, count, hasty)
    await tasks.start()
    began = await server.count()
    await asyncio.sleep(_HASTE_S)
    found["requests_per_minute"] = (await server.count() - began) / (_HASTE_S * _HASTE / 60)
    await tasks.close()
    await server.stop()
    print(json.dumps(found))


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _memory() -> float:
    """Resident, in MiB."""
    return float(psutil.Process().memory_info().rss) / 2**20


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
