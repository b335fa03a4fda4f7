"""``python -m bench.restarts [ROUNDS]``: from a killed worker to the first new step, and the same by hand.

The same loop on the same simulated slice, once with ``JaxTrainerOperator``'s runtime and once with Ray Train alone, in
turn. It takes about two minutes for each round on a quiet machine.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow_raytpu.model.identity import Identity
from bench import restart_loops
from bench.measure import Result, a_a_ratio
from tests.simulated_cluster import SimulatedCluster, job_request, running_cluster, stage_files

SHAPE = "v6e:4x4"
_ROUNDS, _STEPS, _KILLS = 2, 40, (12, 22, 32)
_GOAL = 1.2
_WITHIN_S = 600.0


def main(arguments: list[str]) -> int:
    """0 where the goal holds."""
    rounds = int(arguments[0]) if arguments else _ROUNDS
    print(_place())
    found: dict[str, list[float]] = {"by hand": [], "ours": []}
    with tempfile.TemporaryDirectory(prefix="raytpu-bench-") as folder, running_cluster(SHAPE) as cluster:
        for number in range(rounds):
            for way, train in (("by hand", _by_hand), ("ours", _ours)):
                place = Path(folder) / f"{way.replace(' ', '-')}-{number}"
                place.mkdir()
                config = _config(place)
                train(cluster, place, config)
                found[way] += (seconds := _restarts(config))
                print(f"round {number + 1}, {way}: {', '.join(f'{each:.1f}' for each in seconds)} s", flush=True)
    ratio = statistics.median(found["ours"]) / statistics.median(found["by hand"])
    result = Result(
        id="restarts.ratio",
        what=f"kill to first new step, against Ray Train by hand ({statistics.median(found['by hand']):.1f} s)",
        value=round(ratio, 3),
        unit="",
        goal=_GOAL,
        a_a_ratio=a_a_ratio(found["by hand"]),
        rounds=len(found["ours"]),
    )
    verdict = "holds" if result.holds else "MISSED"
    print(f"{result.id:<24} {result.value:>10.4g} {result.unit:<6} goal {result.goal:g}  {verdict}  {result.what}")
    print(json.dumps(result.to_dict()))
    print(_place())
    return 0 if result.holds else 1


def _config(place: Path) -> dict[str, Any]:
    return {"steps": _STEPS, "kills": list(_KILLS), "trace": str(place / "trace"), "folder": str(place / "by-hand")}


def _ours(cluster: SimulatedCluster, place: Path, config: dict[str, Any]) -> None:
    code = stage_files({"restart_loops.py": Path(restart_loops.__file__).read_text()}, place / "code")
    identity = Identity(deployment="bench", dag_id="bench", task_id=place.name, run_id="run", attempt=1)
    request = job_request(
        place.name,
        place / "storage",
        code,
        on=cluster.request,
        slice=SHAPE,
        identity=identity,
        arguments={
            "train_loop": "restart_loops:ours",
            "train_loop_config": config,
            "datasets": {},
            "checkpoint": {"every_steps": restart_loops.EVERY, "keep": 2},
            "failures": 0,
            "evictions": len(_KILLS),
            "resume": "auto",
        },
    )
    seen = cluster.run(request, _WITHIN_S)
    if seen.outcome is None or not seen.outcome.succeeded:
        raise RuntimeError(cluster.log(request))


def _by_hand(cluster: SimulatedCluster, place: Path, config: dict[str, Any]) -> None:
    Path(config["folder"]).mkdir()
    (place / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, restart_loops.__file__, str(place / "config.json")],
        env=cluster.driver_environment(),
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")


def _restarts(config: dict[str, Any]) -> list[float]:
    """Seconds from each kill to the first step after it, which is one that was done before."""
    lines = [line.split() for line in Path(config["trace"]).read_text().splitlines()]
    steps = [(int(step), float(at)) for _, step, at in lines]
    again = [at for (before, _), (step, at) in itertools.pairwise(steps) if step <= before]
    killed = [float(Path(f"{config['trace']}.{step}").read_text()) for step in config["kills"]]
    return [at - then for at, then in zip(again, killed, strict=True)]


def _place() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("ray", "jax", "orbax-checkpoint")]
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{', '.join(versions)}, Python {platform.python_version()}; {os.cpu_count()} CPUs, load {load}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
