"""A thousand tasks that wait in one process: what they ask of the API server, what they cost, how soon they notice.

Beside it, in the same run, one poll as Airflow's Kubernetes provider does it. Server and tasks are processes of their
own; the server is the tests' double of one, without TLS. Counts and memory are taken once, and have no A/A ratio.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.measure import Result, a_a_ratio
from bench.waiting_tasks import percentile

_TASKS = 1000
_POLLS = 40
_STOCK_POLLS_PER_MINUTE = 30
"""Every 2 s, the default of ``KubernetesPodOperator``."""

_LIBRARIES = ("aiohttp", "kubernetes_asyncio", "apache-airflow-providers-cncf-kubernetes")
_REPOSITORY = Path(__file__).parents[1]


def measure() -> list[Result]:
    ours, stock = _run("waiting_tasks", _TASKS), _run("waiting_stock", _POLLS)
    return [*_requests(ours, stock), *_cpu(ours, stock), *_delays(ours)]


def _requests(ours: dict[str, Any], stock: dict[str, Any]) -> list[Result]:
    where = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    where = f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, Python {platform.python_version()}, {where}"
    steady, polled = ours["requests_per_minute"], _STOCK_POLLS_PER_MINUTE * _TASKS * stock["requests"]
    return [
        _result("requests", f"requests of {_TASKS} tasks over 6 kinds in the long run; {where}", steady, "/min", 10),
        _result("requests_to_start", f"requests until {_TASKS} tasks wait", ours["requests_to_start"], "", 30),
        _result("requests_vs_stock", f"requests as a share of {_TASKS} polled tasks'", steady / polled, "", 0.001),
        _result("memory", f"memory of {_TASKS} tasks and their 4 kB objects", ours["memory_mb"], "MiB", 150),
    ]


def _cpu(ours: dict[str, Any], stock: dict[str, Any]) -> list[Result]:
    quiet, busy = ours["cpu_quiet"], ours["cpu_busy"]
    poll = statistics.median(stock["cpu"])
    share = statistics.fmean(busy) / (poll * _STOCK_POLLS_PER_MINUTE * _TASKS)
    stated = f"CPU at 20 events a second as a share of polls every 2 s by a new client ({1000 * poll:.1f} ms a poll)"
    return [
        _timed("cpu_quiet", f"CPU of {_TASKS} tasks while nothing happens", statistics.fmean(quiet), "s/min", 1, quiet),
        _timed("cpu_busy", f"CPU of {_TASKS} tasks at 20 events a second", statistics.fmean(busy), "s/min", 6, busy),
        _timed("cpu_vs_stock", stated, share, "", 0.01, stock["cpu"]),
    ]


def _delays(ours: dict[str, Any]) -> list[Result]:
    late, quiet, busy = ours["late"], ours["lag_quiet"], ours["lag_busy"]
    return [
        _timed("notice_p50", "from event to notice, median", 1000 * statistics.median(late), "ms", 100, late),
        _timed("notice_p99", "from event to notice, 99 of 100", 1000 * percentile(late, 99), "ms", 1000, late),
        _result("missed", "events that no task noticed", ours["missed"], "", 0),
        _timed("loop_lag_quiet", "event loop's lag, 99 of 100, quiet", 1000 * percentile(quiet, 99), "ms", 50, quiet),
        _timed("loop_lag_busy", "event loop's lag, 99 of 100, busy", 1000 * percentile(busy, 99), "ms", 50, busy),
    ]


def _result(name: str, what: str, value: float, unit: str, goal: float) -> Result:
    return Result(id=f"waiting.{name}", what=what, value=round(value, 6), unit=unit, goal=goal, a_a_ratio=1.0, rounds=1)


def _timed(name: str, what: str, value: float, unit: str, goal: float, measured: list[float]) -> Result:
    return Result(
        id=f"waiting.{name}",
        what=what,
        value=round(value, 6),
        unit=unit,
        goal=goal,
        a_a_ratio=a_a_ratio(measured),
        rounds=len(measured),
    )


def _run(module: str, count: int) -> dict[str, Any]:
    """What a measured process of its own prints."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{module}", str(count)],
            cwd=_REPOSITORY,
            env={**os.environ, "AIRFLOW_HOME": home},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"bench.{module} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
