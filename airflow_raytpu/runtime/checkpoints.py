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
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_raytpu.model.errors import CheckpointError, DivergedError, LostError, PathError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import files, trees
from airflow_raytpu.runtime.agreement import Agreement, Board
from airflow_raytpu.runtime.commits import Commit, best_of, committed, reading
from airflow_raytpu.runtime.faults import EVICTED
from airflow_raytpu.runtime.lineage import GIVE
from airflow_raytpu.runtime.losses import Losses
from airflow_raytpu.runtime.outbox import MIN_INTERVAL_S, finite
from airflow_raytpu.runtime.pacing import Done, Stopwatch
from airflow_raytpu.runtime.profiling import Profiler
from airflow_raytpu.runtime.resizing import ResizeError
from airflow_raytpu.runtime.saving import Saver

State = TypeVar("State")
Found = TypeVar("Found")

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
    if session.restore is not None:
        state = _restore_into(session.restore.uri, state)
        session.begin(session.restore.step)
        return state, session.restore.step
    if session.warm_start:
        state = _restore_into(session.warm_start, state, warm=True)
        log.info("the state is that of %s, the steps begin at 0", session.warm_start)
    session.begin(0)
    return state, 0


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
    :raises LostError: its bucket is in trouble.
    """
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    tree = _found(uri, trees.written)
    plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    with reading(uri), ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(files.native(uri), restore_args=plain)


def _restore_into(uri: str, state: State, *, warm: bool = False) -> State:
    """*uri* in the shapes and shardings of *state*, whatever mesh it was saved from.

    :param warm: numbers of another type are turned into the state's, as one does who trains on in another precision.
    :raises PathError: there is no checkpoint.
    :raises CheckpointError: it is of another model.
    :raises LostError: its bucket is in trouble.
    """
    import jax
    import orbax.checkpoint as ocp

    found = _found(uri, trees.stored)
    if differs := trees.mismatch(trees.leaves(state), found, types=not warm):
        lever = (
            "Pass a checkpoint of this model." if warm else 'Restore the model as it was; resume="never" begins anew.'
        )
        raise CheckpointError(f"The checkpoint {uri} is of another model: {differs}.", lever)
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    with reading(uri), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(files.native(uri), like)  # type: ignore[no-any-return]


def _found(uri: str, look: Callable[[str], Found]) -> Found:
    """What *look* finds of the checkpoint at *uri*.

    :raises PathError: there is none.
    :raises LostError: its bucket is in trouble.
    """
    try:
        with reading(uri):
            return look(files.native(uri))
    except (FileNotFoundError, ValueError) as error:
        raise PathError(f"There is no checkpoint at {uri}.", GIVE) from error


@dataclass
class Session:
    """What one worker knows of its run's checkpoints. One a process, opened by the runtime around the author's loop.

    :param restore: what the driver chose for all workers; ``None`` begins afresh.
    :param total: steps in all, 0 where unknown.
    :param tell: takes the progress of the loop; called on rank 0 alone.
    :param warm_start: URI of the checkpoint whose state a fresh run begins with, empty for none.
    :param on_nan: ``"stop"``, ``"roll_back"`` (the driver does it; here it is the same) or ``"ignore"``.
    :param board: where rank 0 speaks to the others, ``None`` where there are none.
    :param noticed: see :class:`Agreement`, as is ``wished``.
    :param position: says where the data stands.
    """

    root: str
    request: str
    policy: CheckpointPolicy
    lineage: tuple[str, ...]
    restore: Commit | None
    total: int
    rank: int
    tell: Callable[[dict[str, Any]], None]
    warm_start: str = ""
    on_nan: str = "stop"
    board: Board | None = None
    noticed: Callable[[], str] = str
    wished: Callable[[], str] = str
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    make: Callable[[float], Any] | None = None
    profiler: Profiler | None = None
    position: Callable[[], Mapping[str, Any]] = dict
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    _state: Any = None
    _data: Mapping[str, Any] = field(default_factory=dict)
    _told_at: float = 0.0
    _told_step: int = 0

    def __post_init__(self) -> None:
        self._losses, self._done, self._watch = Losses(), Done(), Stopwatch(self.clock, self.ticks)
        self._agreement = Agreement(self.policy, self.rank, self.board, self.noticed, self.ticks, self.wished)
        self._saver = Saver(
            self.root, self.request, self.policy, self.lineage, self.rank, self.board, self.make, self.restore
        )

    @property
    def commit(self) -> Commit | None:
        """The newest checkpoint that this process saw committed, or was restored from."""
        return self._saver.commit

    @property
    def blocked_s(self) -> float:
        """Seconds for which the loop stood still because of saves, and of a profile."""
        return self._saver.blocked_s + (self.profiler.blocked_s if self.profiler else 0.0)

    def begin(self, step: int) -> None:
        """The loop goes on from *step*."""
        self.step = step
        self._agreement.begin(step)
        self._watch.begin(step)

    def after(self, step: int, state: Any, metrics: Mapping[str, Any]) -> None:
        """One more step is done.

        :raises LostError: hosts will be taken away; all is saved, where storage took it.
        :raises ResizeError: another try will have more slices; all is saved.
        """
        self.step, self.metrics, self._state, self._data = step, metrics, state, self.position()
        self._losses.add(step, metrics)
        if self.rank == 0:
            self._done.add(step, metrics)
            self._say()
        if self.profiler:
            self.profiler.after(step, state)
        turn = self._agreement.at(step)
        if turn.save:
            self._save()
        # For the last step no other try is worth its while.
        part = "" if 0 < self.total <= step else turn.part
        if turn.leave or part:
            # Steps beyond the save would only be lost. Another try goes on, so this save is not the last one.
            self._settle()
            if self.rank == 0:
                # The time up to here was of use.
                self._say(now=True)
            saved = self.commit is not None and self.commit.step == step
            how = f"saved at step {step:,}" if saved else f"step {step:,} could not be saved"
            if turn.leave:
                raise LostError(f"{turn.leave}: {how}, and left in time.", EVICTED)
            if saved:
                raise ResizeError(f"{part}: {how}, to go on with more slices.")

    def finish(self) -> None:
        """Save the last state, where it was not, and wait until it is committed."""
        if self._state is not None and self.step > self._agreement.asked:
            self._save()
        self._settle(last=True)
        self._saver.close()
        if self.profiler:
            self.profiler.finish()
        if self.rank == 0 and self.step:
            self._say(now=True)

    def best(self) -> Commit | None:
        """The best checkpoint there is, where the policy says what that means."""
        found = best_of(committed(self.root, self.lineage), self.policy.best) if self.policy.best else None
        if self.policy.best and found is None:
            log.warning("No checkpoint has the metric %r, so none is the best.", self.policy.best[0])
        return found

    def abandon(self) -> None:
        """The loop has failed: let a save under way end, if it can soon."""
        self._saver.abandon()
        if self.profiler:
            self.profiler.abandon()

    def _say(self, now: bool = False) -> None:
        """Tell how far the devices are; *now*, wait until they are done with all."""
        if self._told_at and self.clock() - self._told_at < MIN_INTERVAL_S and not now:
            return
        # The first step is waited for, which compiles: the time that it takes is accounted for on its own.
        step, metrics = self._done.newest if self._told_at and not now else (self.step, self.metrics)
        if step <= self._told_step and not now:
            return
        numbers = self._sound(step, metrics)
        at, done = self.clock(), step - self._told_step
        pace = self._watch.at(step, self.blocked_s)
        news = {"done": step, "total": self.total, "at": at, "metrics": numbers, "pace": pace}
        # No rate from the first step, which holds the compilation.
        if self._told_at and done > 0 and at > self._told_at:
            news["rate"] = done / (at - self._told_at)
        self._told_step, self._told_at = step, at
        self.tell(news)

    def _save(self) -> None:
        self._settle()
        # Looked at before it can replace a good one.
        self._saver.save(self.step, self._state, self._sound(self.step, self.metrics), self._data)

    def _settle(self, last: bool = False) -> None:
        """Wait for the save under way, and tell Ray Train of it."""
        commit = self._saver.settle(last)
        if commit is not None:
            _report(commit)

    def _sound(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The *metrics* of *step* as numbers.

        :raises DivergedError: the loss is none, and that is to end the task.
        """
        broken = None if self.on_nan == "ignore" else self._losses.broken(step)
        if broken is None:
            return finite(metrics)
        self.abandon()
        (step, loss), sound_at, good = broken, self._losses.sound_at, self.commit
        seen = f" (it was a number at step {sound_at:,})" if sound_at else ""
        last = f"The last good checkpoint is step {good.step:,} ({good.uri})." if good else "No checkpoint is good."
        raise DivergedError.at(
            step,
            f"The loss is {loss} at step {step:,}{seen}. {last}",
            'Lower the learning rate, or look at the data; on_nan="ignore" goes on regardless.',
        )


def _report(commit: Commit) -> None:
    """Make the checkpoint Ray Train's newest, so that its own tools and ``get_checkpoint`` see it.

    Not by ``ray.train.report``, whose first half is a barrier of all workers, to agree on the folder (Ray 2.60). All
    have agreed on it already.
    """
    from ray import train
    from ray.train.v2._internal.execution.context import get_train_context
    from ray.train.v2._internal.execution.training_report import _TrainingReport

    filesystem, path = files.locate(commit.uri)
    metrics = {"step": commit.step, **commit.metrics}
    context = get_train_context()
    context.report_call_index += 1
    report = _TrainingReport(train.Checkpoint(path, filesystem), metrics, validation=False)
    context._wait_then_report(report, context.report_call_index)  # noqa: SLF001 - the other half has no public name


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
