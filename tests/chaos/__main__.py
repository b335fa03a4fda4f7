"""``make chaos``: rounds of real work, each with a fault at a drawn moment; 1 where anything was lost.

``python -m tests.chaos --seed 1 --rounds 100``; with ``--only 17`` that one round of the seed is played alone.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time

from tests.chaos import checks, draw, report
from tests.chaos.play import play
from tests.chaos.report import Result
from tests.chaos.stage import stage


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    asked.add_argument("--seed", type=int, default=1, help="what is drawn; the same seed gives the same rounds")
    asked.add_argument("--rounds", type=int, default=10, help="how many")
    asked.add_argument("--first", type=int, default=1, help="begin with this round of the seed")
    asked.add_argument("--only", type=int, action="append", help="play just this round of the seed; may be repeated")
    options = asked.parse_args()
    plans = draw.rounds(options.seed, max([options.rounds, *(options.only or ())]))
    if options.only:
        plans = [plan for plan in plans if plan.number in options.only]
        batches = [[plan] for plan in plans]
    else:
        plans = [plan for plan in plans if plan.number >= options.first]
        batches = [list(batch) for _, batch in itertools.groupby(plans, lambda plan: plan.batch)]
    # Told to end, it ends what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, results = time.time(), list[Result]()
    with stage() as found:
        say(f"seed {options.seed}, {len(plans)} rounds; all is up after {time.time() - began:.0f} s")
        began = time.time()
        try:
            for batch in batches:
                for facts in play(found, batch):
                    results.append(Result(facts, checks.judge(found, facts)))
                    say(report.line(results[-1], len(results), len(plans), began))
                    if results[-1].losses.all():
                        say(report.evidence(results[-1]))
        finally:
            say("\n" + report.summary(results, options.seed, began))
            say(f"{found.revived} times a component of Airflow had ended by itself and was started again")
    return 1 if any(each.losses.all() for each in results) else 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
