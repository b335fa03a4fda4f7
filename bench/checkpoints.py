"""``python -m bench.checkpoints [KILLS]``: steps that a kill costs, what the helper costs in each step, and goodput.

It starts simulated slices of its own, and takes about a quarter of a minute for each kill on a quiet machine, and some
minutes beside them.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated.state import Arrivals
from bench.measure import Result, a_a_ratio
from tests.faults import checkpoint_loops
from tests.faults.checkpoint_gangs import EVERY, SMALL, Gangs, fault, tries
from tests.simulated_cluster import running_cluster

_KILLS = 30
_SEED = 7
_LONGEST_OFFSET_S = 0.6
_GOAL_PERCENT = 2.0
_SAME_LOSS = 1e-6
_LOSSES, _STEPS_A_LOSS, _NAP_S = 3, 1000, 0.05
_GOODPUT_GOAL_PERCENT = 5.0


def main(arguments: list[str]) -> int:
    """0 where every goal holds."""
    kills = int(arguments[0]) if arguments else _KILLS
    print(_place())
    with (
        tempfile.TemporaryDirectory(prefix="raytpu-bench-") as folder,
        running_cluster(SMALL, also=[SMALL], arrivals=Arrivals(heal_s=1.0)) as cluster,
    ):
        gangs = Gangs(cluster, Path(folder))
        found = [_hooks(gangs), *_kills(gangs, kills), _goodput(gangs)]
    for result in found:
        verdict = "holds" if result.holds else "MISSED"
        print(f"{result.id:<24} {result.value:>10.4g} {result.unit:<6} goal {result.goal:g}  {verdict}  {result.what}")
        print(json.dumps(result.to_dict()))
    print(_place())
    return 0 if all(result.holds for result in found) else 1


def _kills(gangs: Gangs, count: int) -> Iterator[Result]:
    """One run that is killed *count* times, each time in a save: steps that were done again beyond the fewest possible.

    The fewest is what came since the newest checkpoint that was committed when the kill came. Every loss of each try
    is compared with that of a run which nothing interrupts.
    """
    moment = random.Random(_SEED)
    faults = [
        fault(moment.choice(("worker", "host")), moment.randrange(2), EVERY * (number + 2), _offset(moment))
        for number in range(count)
    ]
    steps = EVERY * (count + 2)
    request = gangs.request("kills", config={"steps": steps, "faults": faults}, evictions=count)
    gangs.result(request, within_s=60 + 60 * count)
    runs, config = tries(request), request.arguments["train_loop_config"]
    lost = [before.reached - after.began for before, after in itertools.pairwise(runs)]
    committed = [int(checkpoint_loops.mark(config, each).read_text()) for each in faults]
    fewest = [run.reached - known for run, known in zip(runs, committed, strict=False)]
    print(f"steps lost by {len(lost)} kills: {lost}; fewest possible: {fewest}")
    beyond = [some - least for some, least in zip(lost, fewest, strict=True)]
    yield Result(
        id="checkpoints.lost",
        what=f"steps lost beyond the fewest possible, the worst of {len(lost)} kills in a save each {EVERY} steps",
        value=max(beyond),
        unit="steps",
        goal=0,
        a_a_ratio=1.0,
        rounds=len(lost),
    )
    alone = gangs.request("alone", config={"steps": steps})
    gangs.result(alone, within_s=60 + steps)
    (whole,) = tries(alone)
    told = [(step, loss) for run in runs for step, loss in run.losses.items()]
    yield Result(
        id="checkpoints.curve",
        what=f"the largest relative difference of {len(told)} losses over all tries from an uninterrupted run's",
        value=max(abs(loss / whole.losses[step] - 1) for step, loss in told),
        unit="",
        goal=_SAME_LOSS,
        a_a_ratio=1.0,
        rounds=len(runs),
    )


def _offset(moment: random.Random) -> float:
    return moment.uniform(0, _LONGEST_OFFSET_S)


def _hooks(gangs: Gangs) -> Result:
    """Blocks of steps with the helper, between blocks of the same steps that save with Orbax alone."""
    request = gangs.request("hooks", policy={"every_steps": 50}, loop="measure")
    gangs.result(request, within_s=400)
    seconds: dict[str, Any] = json.loads(Path(request.arguments["train_loop_config"]["trace"]).read_text())
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    print(", ".join(f"{name} {value:.6f} s" for name, value in medians.items()))
    return Result(
        id="checkpoints.hooks",
        what=f"more than with Orbax alone, a save each 50 steps; a call without a save {medians['call'] * 1e6:.0f} us",
        value=round((medians["ours"] / medians["orbax"] - 1) * 100, 2),
        unit="%",
        goal=_GOAL_PERCENT,
        a_a_ratio=a_a_ratio(seconds["orbax"]),
        rounds=len(seconds["ours"]),
    )


def _goodput(gangs: Gangs) -> Result:
    """A run that loses a worker about once a minute, which stands for ten: what it lacks of the share within reach."""
    faults = [fault("worker", number % 2, _STEPS_A_LOSS * (number + 1) + 50) for number in range(_LOSSES)]
    config = {"steps": _STEPS_A_LOSS * (_LOSSES + 1), "nap": _NAP_S, "faults": faults}
    request = gangs.request("goodput", config=config, policy={"every_steps": 100}, evictions=_LOSSES)
    goodput = gangs.result(request, within_s=900)["goodput"]
    print(goodput)
    return Result(
        id="checkpoints.goodput",
        what=f"less than the ceiling of {goodput['ceiling']:.3f}, one loss a minute; {goodput['useful']:.3f} is useful",
        value=round((1 - goodput["useful"] / goodput["ceiling"]) * 100, 2),
        unit="%",
        goal=_GOODPUT_GOAL_PERCENT,
        a_a_ratio=1.0,
        rounds=_LOSSES,
    )


def _place() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("ray", "jax", "orbax-checkpoint")]
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{', '.join(versions)}, Python {platform.python_version()}; {os.cpu_count()} CPUs, load {load}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
