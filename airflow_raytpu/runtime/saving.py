"""Saves beside the loop: one at a time, proven before they count, and never quietly lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from airflow_raytpu.model.errors import CheckpointError, LostError, RayTpuError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import files, mesh, trees
from airflow_raytpu.runtime.agreement import Board
from airflow_raytpu.runtime.commits import Commit, OvertakenError, folder, inventory, prune, record

_ABANDON_S = 10.0
_FAREWELL_S = 30.0
_LOOK_S = 0.5

log = logging.getLogger(__name__)


class Saver:
    """One rank's part in the saves of a run. Whether a save counts is rank 0's word, which all ranks hear.

    :param board: ``None`` where there is one rank.
    :param make: makes Orbax's checkpointer.
    :ivar commit: the newest checkpoint that is known to be good.
    """

    def __init__(
        self,
        root: str,
        request: str,
        policy: CheckpointPolicy,
        lineage: tuple[str, ...],
        rank: int,
        board: Board | None,
        make: Callable[[float], Any] | None = None,
        commit: Commit | None = None,
    ) -> None:
        self._root, self._request, self._policy, self._lineage = root, request, policy, lineage
        self._rank, self._board, self._make = rank, board, make or _orbax
        self._orbax: Any = None
        self._thread: threading.Thread | None = None
        self._saving: Commit | None = None
        self._error = ""
        self._overtaken: OvertakenError | None = None
        self._entered = False
        self._failures = 0
        self._spoken: list[str] = []
        self.commit = commit
        self.blocked_s = 0.0

    def save(self, step: int, state: Any, metrics: Mapping[str, float], data: Mapping[str, Any] | None = None) -> None:
        """Begin to save; returns once the state is copied off the devices. The save before must be settled.

        :raises CheckpointError: this rank alone could not begin, while the others wait for it in Orbax;
        :raises LostError: likewise, by trouble of a bucket.
        """
        import orbax.checkpoint as ocp

        began = time.monotonic()
        commit = Commit(step, folder(self._root, step), self._request, metrics, time.time(), data=data or {})
        self._saving, self._error = commit, ""
        leaves = trees.leaves(state) if self._rank == 0 else {}
        try:
            if self._board is None:
                # Orbax, where it is refused the folder, leaves threads that keep the process from ending (0.12). In a
                # gang all ranks must go into Orbax, or none: the others would hang there.
                files.make_folder(self._root)
            if self._orbax is None:
                self._orbax = self._make(self._policy.longest_save)
            self._error = self._make_way(commit)
            self._entered = not self._error
            if self._entered:
                self._orbax.save(files.native(commit.uri), args=ocp.args.StandardSave(state), force=True)
        except Exception as error:
            # Whatever storage does, it is told in settle, but where the others wait for this host.
            self._error = _first_line(error)
            if self._board is not None and files.in_bucket(commit.uri):
                # It answered just now, so this passes: another try, rather than no more.
                raise LostError(
                    f"The checkpoint of step {commit.step:,} could not be begun ({mesh.host()}): {self._error}",
                    "Google Cloud Storage may be in trouble; the hosts are out of step and begin again.",
                ) from error
            if self._board is not None:
                self._fail(commit, "the hosts are out of step")
        self._thread = threading.Thread(target=self._finish, args=(commit, leaves), name=f"commit {step}", daemon=True)
        self._thread.start()
        self.blocked_s += time.monotonic() - began

    def settle(self, last: bool = False) -> Commit | None:
        """Wait for the save under way; what it committed, ``None`` where nothing was or it failed.

        :param last: nothing comes after it, so it must not have failed.
        :raises CheckpointError: it failed, and was the last, or one too many.
        :raises LostError: it is stuck, or another gang of this run has committed the step.
        """
        thread, commit = self._thread, self._saving
        if thread is None or commit is None:
            return None
        began = time.monotonic()
        thread.join(self._policy.longest_save + _FAREWELL_S)
        self.blocked_s += time.monotonic() - began
        if thread.is_alive():
            raise LostError(
                f"The save of step {commit.step:,} has not ended within {self._policy.longest_save:.0f} s.",
                f"Look at {self._root}; raise CheckpointPolicy(longest_save=...) if a save takes that long.",
            )
        self._thread = self._saving = None
        if self._overtaken is not None:
            raise self._overtaken
        if not self._error:
            self._failures = 0
            return self.commit
        self._fail(commit, "it was the last one" if last else "")
        return None

    def abandon(self) -> None:
        """The loop has failed: let a save under way end, if it can soon."""
        if self._thread is not None:
            self._thread.join(_ABANDON_S)

    def close(self) -> None:
        """After the last :meth:`settle`."""
        if self._orbax is not None:
            self._orbax.close()

    def _fail(self, commit: Commit, final: str) -> None:
        """:raises CheckpointError: there is a *final* reason why the loop cannot go on, or it is one too many."""
        self._failures += 1
        # After a failure Orbax may still wait for its own threads: the next save gets a new one.
        self._orbax = None
        good = f" The last good one is step {self.commit.step:,} ({self.commit.uri})." if self.commit else ""
        cause = f"The checkpoint of step {commit.step:,} could not be saved: {self._error}"
        allowed = self._policy.failed_saves
        if final or self._failures >= allowed:
            final = final or f"{self._failures} saves have failed one after another"
            raise CheckpointError(
                f"{cause} ({final}).{good}",
                f"Look at the space and the permissions of {self._root}; every host must reach it.",
            )
        log.warning("%s (%d of %d in a row).%s Going on.", cause, self._failures, allowed, good)

    def _make_way(self, commit: Commit) -> str:
        """Remove what lies in a bucket where *commit* is to be; why it cannot be, which then all ranks know.

        Orbax would do it by itself, but asks for more than Storage Object User may (0.12). On a disk it just does it.
        """
        if not files.in_bucket(commit.uri):
            return ""
        if self._rank and self._board is not None:
            return str(self._board.hear(_begins(commit.step), self._policy.longest_save)["error"])
        error = ""
        try:
            files.remove(commit.uri)
        except OSError as refused:
            error = _first_line(refused)
        if self._board is not None:
            self._board.say(_begins(commit.step), {"error": error})
        return error

    def _finish(self, commit: Commit, leaves: trees.Leaves) -> None:
        """In a thread of its own: wait for the data, prove it, and make it count."""
        elsewhere = ""
        try:
            if not self._error:
                elsewhere = self._await(commit.step)
                if self._rank == 0 and not elsewhere:
                    commit = self._prove(commit, leaves)
        except OvertakenError as error:
            self._error, self._overtaken = _first_line(error), error
        except Exception as error:  # noqa: BLE001 - told in settle
            self._error = _first_line(error)
        try:
            if self._board is not None:
                self._error = self._agree(self._board, commit.step, elsewhere)
        except Exception as error:  # noqa: BLE001 - told in settle
            self._error = _first_line(error)
        if not self._error:
            self.commit = commit

    def _await(self, step: int) -> str:
        """Wait until Orbax is done on every host, or one has failed, of which it would not hear (0.12); then why."""
        if self._board is None:
            self._orbax.wait_until_finished()
            return ""
        done: Future[None] = Future()
        threading.Thread(target=_fulfil, args=(done, self._orbax.wait_until_finished), daemon=True).start()
        while not wait([done], _LOOK_S).done:
            word = self._board.heard(_saved(step) if self._rank else _failed(step))
            if word is not None and word["error"]:
                return str(word["error"])
        done.result()
        return ""

    def _agree(self, board: Board, step: int, elsewhere: str) -> str:
        """Why the save failed, empty where it did not: rank 0's word, so that all count the same failures."""
        own = f"{self._error} ({mesh.host()})" if self._error else ""
        if self._rank:
            if own:
                board.say(_failed(step), {"error": own})
            return str(board.hear(_saved(step), self._policy.longest_save + _FAREWELL_S / 2)["error"])
        board.say(_saved(step), {"error": own or elsewhere})
        if self._entered:
            # Whoever is in this save has heard what was said of the one before.
            for topic in self._spoken:
                board.drop(topic)
            self._spoken = []
        self._spoken += [_begins(step), _saved(step), _failed(step)]
        return own or elsewhere

    def _prove(self, commit: Commit, leaves: trees.Leaves) -> Commit:
        """Look at what was written, then write the record, then remove what is superseded.

        :raises CheckpointError: something is missing.
        :raises OvertakenError: somebody else made it count.
        """
        if lacks := trees.mismatch(leaves, trees.stored(files.native(commit.uri)), types=False):
            raise CheckpointError(f"what was written is not what was saved: {lacks}")
        commit = replace(commit, files=inventory(commit.uri))
        record(commit)
        log.info("checkpoint %d committed in %.2f s", commit.step, time.time() - commit.at)
        try:
            prune(self._root, self._policy.keep, self._lineage, self._policy.best)
        except OSError as error:
            log.warning("Superseded checkpoints could not be removed from %s: %s", self._root, error)
        return commit


def _orbax(longest_s: float) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.options.AsyncOptions(timeout_secs=max(1, int(longest_s)))
    return ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=options)


def _fulfil(done: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
        done.set_exception(error)
    else:
        done.set_result(None)


def _begins(step: int) -> str:
    """Topic of rank 0's word that a save in a bucket can begin."""
    return f"begins {step}"


def _saved(step: int) -> str:
    """Topic of rank 0's word."""
    return f"saved {step}"


def _failed(step: int) -> str:
    """Topic of the other ranks' complaints."""
    return f"failed {step}"


def _first_line(error: BaseException) -> str:
    text = (error.cause if isinstance(error, RayTpuError) else str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
