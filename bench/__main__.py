"""``make bench``: measure everything, print it, and write ``bench/results/summary.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import plan, waiting

_SUMMARY = Path(__file__).parent / "results" / "summary.json"
_PARTS = (plan, waiting)


def main() -> int:
    """0 where every goal holds."""
    found = [result for part in _PARTS for result in part.measure()]
    for result in found:
        verdict = "holds" if result.holds else "MISSED"
        print(f"{result.id:<24} {result.value:>10.4g} {result.unit:<4} goal {result.goal:g}  {verdict}  {result.what}")
    _SUMMARY.parent.mkdir(exist_ok=True)
    _SUMMARY.write_text(json.dumps([result.to_dict() for result in found], indent=2) + "\n")
    return 0 if all(result.holds for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
