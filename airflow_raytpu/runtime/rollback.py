"""``on_nan="roll_back"``: after a loss that is no number, back to a checkpoint whose state is known to be good."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_raytpu.model.errors import DivergedError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.commits import RECORD, Commit, committed

log = logging.getLogger(__name__)


class RollBack:
    """Of one attempt, over its tries."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def check(self, error: DivergedError) -> None:
        """Whether to go back may help.

        :raises DivergedError: the loss was no number at this very step before, so it will be again.
        """
        if error.step in self._seen:
            raise DivergedError.at(
                error.step,
                f"The loss was no number twice at step {error.step:,}, so it is no accident of one try: it follows "
                f"from the code or the data. {error.cause}",
                error.lever,
            ) from error
        self._seen.add(error.step)


def pass_over(root: str, lineage: Sequence[str], step: int) -> None:
    """Remove the checkpoints of *lineage* that a loss which is no number at *step* speaks against.

    The loss of a step is that of the state before it: a checkpoint of ``step - 1`` may have been saved beside a fine
    loss, and still be what made the next one NaN. Where it is the only one, it gets another try.
    """
    found = committed(root, lineage)
    sound = [commit for commit in found if commit.step < step - 1]
    for commit in found:
        if commit.step >= step or (sound and commit.step == step - 1):
            _remove(commit, step)


def _remove(commit: Commit, step: int) -> None:
    log.warning("checkpoint %s is removed: the loss is no number at step %d", commit.uri, step)
    # As when it is superseded: the record first, so that half of it is a torn one.
    files.remove(f"{commit.uri}/{RECORD}")
    files.remove(commit.uri)
