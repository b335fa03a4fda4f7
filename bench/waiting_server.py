"""The API server of :mod:`bench.waiting`, in a process of its own.

Prints where it is; then for each line on its input: ``touch RATE SECONDS`` changes that many objects a second, and
``count`` prints how many requests there were, and how many objects were changed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from tests.doubles.kubernetes.server import FakeKubernetes


async def main(jobs: int) -> None:
    async with FakeKubernetes() as server:
        for number in range(jobs):
            server.put("rayjobs", {"metadata": {"name": f"job-{number}", "labels": {"bench": "yes"}}, "spec": _SPEC})
        _say({"url": server.url, "token": server.token})
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        touching: set[asyncio.Task[None]] = set()
        touched: list[str] = []
        while line := (await lines.readline()).decode().split():
            if line[0] == "touch":
                touching.add(asyncio.create_task(_touch(server, touched, float(line[1]), float(line[2]))))
            else:
                _say({"requests": server.count(), "touched": len(touched)})


async def _touch(server: FakeKubernetes, touched: list[str], rate: float, seconds: float) -> None:
    """Change so many objects a second, none of them twice."""
    names = [each["metadata"]["name"] for each in server.items("rayjobs")]
    random.Random(0).shuffle(names)
    began = time.monotonic()
    for number, name in enumerate(names[: round(rate * seconds)]):
        await asyncio.sleep(began + number / rate - time.monotonic())
        # The monotonic clock is one for all processes of a Linux machine.
        server.status("rayjobs", name, {"touched": time.monotonic()})
        touched.append(name)


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


_SPEC = {"entrypoint": "python -m run", "rayClusterSpec": {"workerGroupSpecs": [{"env": ["x" * 40] * 100}]}}
"""4 kB, as a real one has."""

if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
