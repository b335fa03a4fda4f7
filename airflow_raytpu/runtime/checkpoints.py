"""The author's helper for checkpoints: two calls in a plain JAX loop.

    state, step = checkpoints.restore_or_init(lambda: init_state(config))
    for batch in batches(start=step):
        state, metrics = train_step(state, batch)
        step += 1
        checkpoints.step(step, state, metrics)

Saves run beside the loop (Orbax, all processes together). A checkpoint counts once its commit record is written, after
all its data; anything without one is torn and never restored. The state of the last :func:`step` is saved when the
loop returns. Outside a training task there is nothing to save to: the same loop then runs unsaved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.commits import Commit, folder, prune, record
from airflow_raytpu.runtime.outbox import MIN_INTERVAL_S, finite

State = TypeVar("State")

_ABANDON_S = 10.0

log = logging.getLogger(__name__)


def restore_or_init(init: Callable[[], State], total_steps: int | None = None) -> tuple[State, int]:
    """The state to go on from, and the steps it has behind it: a committed checkpoint's, else a fresh one and 0.

    :param init: makes the fresh state; it also gives the shapes and shardings to restore into.
    :param total_steps: how many steps there will be, for progress; left out, ``train_loop_config["steps"]``.
    """
    state = init()
    session = _session()
    if session is None:
        return state, 0
    session.total = total_steps or session.total
    if session.restore is None:
        return state, 0
    state = _restore_into(session.restore, state)
    session.step = session.saved = session.restore.step
    return state, session.restore.step


def step(step: int, state: Any, metrics: Mapping[str, Any] | None = None) -> None:
    """Tell that *step* steps are done and *state* is what they led to; saves it when its turn has come.

    Every process must call it, with the same *step*. *metrics* are scalars (JAX arrays are fine).
    """
    session = _session()
    if session is not None:
        session.after(step, state, metrics or {})


def load(uri: str) -> Any:
    """The whole checkpoint at *uri* as plain dicts, lists and NumPy arrays, wherever it was trained.

    :raises PathError: there is no checkpoint.
    """
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    path = files.native(uri)
    with ocp.PyTreeCheckpointer() as checkpointer:
        try:
            tree = checkpointer.metadata(path).item_metadata.tree
        except (FileNotFoundError, ValueError, AttributeError) as error:
            raise PathError(
                f"There is no checkpoint at {uri}.", "Give the checkpoint that a training task returned."
            ) from error
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(path, restore_args=plain)


def _restore_into(commit: Commit, state: State) -> State:
    import jax
    import orbax.checkpoint as ocp

    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(files.native(commit.uri), like)  # type: ignore[no-any-return]


@dataclass
class Session:
    """What one worker knows of its run's checkpoints. One a process, opened by the runtime around the author's loop.

    :param restore: what the driver chose for all workers; ``None`` begins afresh.
    :param total: steps in all, 0 where unknown.
    :param tell: takes the progress of the loop; called on rank 0 alone.
    """

    root: str
    request: str
    every: int
    keep: int
    lineage: tuple[str, ...]
    restore: Commit | None
    total: int
    rank: int
    tell: Callable[[dict[str, Any]], None]
    clock: Callable[[], float] = time.time
    step: int = 0
    saved: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    commit: Commit | None = None
    _state: Any = None
    _saver: Any = None
    _told_at: float = 0.0
    _told_step: int = 0
    _failed: Exception | None = None
    _unreported: Commit | None = None
    _background: threading.Thread | None = None

    def after(self, step: int, state: Any, metrics: Mapping[str, Any]) -> None:
        """One more step is done."""
        self.step, self.metrics, self._state = step, metrics, state
        if self.rank == 0:
            self._say()
        if step - self.saved >= self.every:
            self._save()

    def finish(self) -> None:
        """Save the last state, where it was not, and wait until it is committed."""
        if self._state is not None and self.step > self.saved:
            self._save()
        self._settle()
        if self._saver is not None:
            self._saver.close()
        if self.rank == 0 and self.step:
            self._say(now=True)

    def abandon(self) -> None:
        """The loop has failed: let a save under way end, if it can soon."""
        if self._background is not None:
            self._background.join(_ABANDON_S)

    def _say(self, now: bool = False) -> None:
        if self._told_at and self.clock() - self._told_at < MIN_INTERVAL_S and not now:
            return
        # Waits for the devices, which are a few steps behind: only then is it true that the step is done.
        metrics = finite(self.metrics)
        at, done = self.clock(), self.step - self._told_step
        news = {"done": self.step, "total": self.total, "at": at, "metrics": metrics}
        # No rate from the first step, which holds the compilation.
        if self._told_at and done > 0 and at > self._told_at:
            news["rate"] = done / (at - self._told_at)
        self._told_step, self._told_at = self.step, at
        self.tell(news)

    def _save(self) -> None:
        import orbax.checkpoint as ocp

        self._settle()
        if self._saver is None:
            self._saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        uri, began = folder(self.root, self.step), self.clock()
        self._saver.save(files.native(uri), args=ocp.args.StandardSave(self._state), force=True)
        commit = Commit(self.step, uri, self.request, finite(self.metrics), began)
        self.saved = self.step
        self._background = threading.Thread(
            target=self._commit, args=(commit,), name=f"commit {self.step}", daemon=True
        )
        self._background.start()

    def _commit(self, commit: Commit) -> None:
        try:
            self._saver.wait_until_finished()
            if self.rank == 0:
                record(commit)
                prune(self.root, self.keep, self.lineage)
                log.info("checkpoint %d committed in %.2f s", commit.step, self.clock() - commit.at)
            self.commit = self._unreported = commit
        except Exception as error:  # noqa: BLE001 - raised by the main thread in _settle
            self._failed = error

    def _settle(self) -> None:
        """Wait for the save under way, and tell Ray Train of it.

        :raises PathError: it failed.
        """
        if self._background is not None:
            self._background.join()
            self._background = None
        if self._failed is not None:
            raise PathError(
                f"The checkpoint of step {self.saved} could not be saved: {self._failed}",
                f"Look at the space and the permissions of {self.root}; every host must reach it.",
            ) from self._failed
        commit, self._unreported = self._unreported, None
        if commit is not None:
            _report(commit)


def _report(commit: Commit) -> None:
    """Make the checkpoint Ray Train's newest, so that its own tools and ``get_checkpoint`` see it."""
    from ray import train

    filesystem, path = files.locate(commit.uri)
    train.report(
        {"step": commit.step, **commit.metrics},
        checkpoint=train.Checkpoint(path, filesystem),
        checkpoint_dir_name=str(commit.step),
        checkpoint_upload_mode=train.CheckpointUploadMode.NO_UPLOAD,
    )


_open: list[Session] = []


def _session() -> Session | None:
    return _open[-1] if _open else None


@contextmanager
def opened(session: Session) -> Iterator[Session]:
    """Make *session* the process's own. For the runtime, not for authors."""
    _open.append(session)
    try:
        yield session
    except BaseException:
        session.abandon()
        raise
    finally:
        _open.remove(session)
