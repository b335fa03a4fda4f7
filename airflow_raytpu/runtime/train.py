"""Train: Ray Train's JaxTrainer on whole slices, begun again from the newest checkpoint as the budgets allow."""

from __future__ import annotations

import functools
import logging
import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import ray

from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import (
    BrokenSliceError,
    DivergedError,
    LostError,
    NoSliceError,
    PlaceError,
    RayTpuError,
)
from airflow_raytpu.model.policies import Profile
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice, widest
from airflow_raytpu.runtime import files, profiling, relay
from airflow_raytpu.runtime.author import AuthorError, first_to_blame
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.commits import Commit, newest, sweep
from airflow_raytpu.runtime.datasets import PerRank, inputs, shares, whole
from airflow_raytpu.runtime.faults import EVICTED, cause_of, causes, first_line, ours
from airflow_raytpu.runtime.lineage import lineage, warm_start
from airflow_raytpu.runtime.loop import Settings, run_loop
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.resizing import ResizeError, Sizes
from airflow_raytpu.runtime.rollback import RollBack, pass_over
from airflow_raytpu.runtime.series import Series
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import own_slice
from airflow_raytpu.runtime.tally import StepTally
from airflow_raytpu.runtime.tenancy import Tenancy
from airflow_raytpu.runtime.watch import Watch

if TYPE_CHECKING:
    from ray.train.v2.jax import JaxTrainer

_START_S = 20.0
"""How long Ray Train waits for hosts that are held for it: one that is not there by then is not coming."""

_SNAPSHOT = "checkpoint_manager_snapshot.json"
_TUNING = {
    # Ray's defaults poll the workers every 2 s: an error and the end of the loop would wait for it, twice.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Rank 0 looks for notices itself, see agreement.draining: one process less, and no barrier in each step.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # The workers stay where the author's code is.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


log = logging.getLogger(__name__)


class TakenError(Exception):
    """Somebody was faster at the chips of our slice, or a host went, before the workers were there."""


def run(request: RayRequest, outbox: Outbox) -> Mapping[str, Any]:
    """Train as *request* says.

    :raises AuthorError: the loop raised more often than ``failures`` allows.
    :raises NoSliceError: no whole slice in time.
    :raises LostError: the slice was lost more often than ``evictions`` allows.
    """
    shape = TpuSlice.parse(request.slice) if request.slice else own_slice(ray.nodes())
    job = _Job(request, outbox, plan(widest(shape, Elastic.of(request.arguments))))
    return job.run()


class _Job:
    def __init__(self, request: RayRequest, outbox: Outbox, slice_plan: SlicePlan) -> None:
        self._request, self._outbox, self._plan = request, outbox, slice_plan
        self._arguments = request.arguments
        self._root = f"{request.storage}/checkpoints"
        self._lineage = lineage(request, self._arguments["resume"])
        batch = whole(self._arguments.get("train_loop_config", {}).get("global_batch_size"))
        self._inputs = inputs(self._arguments.get("datasets") or {}, slice_plan.workers, batch)
        self._warm_start = warm_start(request)
        self._tally = StepTally(Spent.of(request.arguments), at=time.time())
        self._series = Series(request)
        self._roll_back = RollBack()
        self._until = request.limits.slice_until
        self._elastic = Elastic.of(self._arguments)
        self._sizes = Sizes(request.name, slice_plan.slice.num_slices, self._tally)

    def run(self) -> Mapping[str, Any]:
        os.environ.update({name: os.environ.get(name, value) for name, value in _TUNING.items()})
        files.make_folder(self._root)
        sweep(self._root)
        with Tenancy(self._plan, self._outbox.wait, self._elastic.least if self._elastic else None) as tenancy:
            while True:
                restore = self._choose()
                try:
                    value = self._started(tenancy, restore)
                except ResizeError as error:
                    self._resize(error)
                except (BrokenSliceError, LostError, SilentError) as error:
                    self._spend(tenancy.as_loss(error, fruitless=self._tally.fruitless))
                except (AuthorError, DivergedError) as error:
                    self._spend(error)
                else:
                    return self._result(value)

    def _started(self, tenancy: Tenancy, restore: Commit | None) -> dict[str, Any]:
        """A try on a slice that is held, and another where its workers did not get there."""
        while True:
            try:
                return self._try(tenancy, restore)
            except TakenError as error:
                log.warning("%s Looking for a slice again.", error)
                if time.time() > self._until:
                    lever = "Raise slice_wait, or see who takes chips without a slice."
                    raise NoSliceError(str(error), lever) from error

    def _choose(self) -> Commit | None:
        """The checkpoint all workers restore: chosen once, here, so that they cannot differ."""
        found = newest(self._root, self._lineage)
        self._tally.begin(found.step if found else 0)
        self._series.begin(found.step if found else 0)
        if found is not None:
            log.info("going on from step %d (%s)", found.step, found.uri)
        if found is not None or len(self._lineage) == 1:
            # Ray's own list of checkpoints refuses to start where one of them is gone; ours decides.
            files.remove(f"{self._root}/{_SNAPSHOT}")
        return found

    def _spend(self, error: AuthorError | DivergedError | LostError) -> None:
        """:raises RayTpuError: nothing may follow it. It is *error* itself, or says more of it."""
        if isinstance(error, DivergedError):
            if self._arguments.get("on_nan") != "roll_back":
                raise error
            self._roll_back.check(error)
        self._tally.spend(error, self._arguments, self._outbox)
        if isinstance(error, DivergedError):
            pass_over(self._root, self._lineage, error.step)
        self._wait_anew()

    def _resize(self, error: ResizeError) -> None:
        """Nobody is charged for it, and no step is lost."""
        log.info("%s", error.cause)
        self._outbox.tell(phase="starting again", message=error.cause)
        self._wait_anew()

    def _wait_anew(self) -> None:
        limits = self._request.limits
        self._until = min(limits.total_until, max(limits.slice_until, time.time() + limits.slice_wait_s))

    def _try(self, tenancy: Tenancy, restore: Commit | None) -> dict[str, Any]:
        """One group of workers from start to end; what its rank 0 returned."""
        from ray.train import ControllerError, TrainingFailedError, WorkerGroupError

        watch = Watch(self._request, self._outbox, self._tally, self._series)
        held: ReservedSlice | None = None
        try:
            with relay.Pump(watch.turn):
                held = self._hold(tenancy)
                watch.hold()
                with self._sizes.growing(tenancy):
                    result = self._trainer(held, restore).fit()
        except WorkerGroupError as error:
            raise self._blame(error.worker_failures, held) from error
        except ControllerError as error:
            raise self._explain(error.controller_failure) from error
        except TrainingFailedError as error:
            raise LostError(f"The slice was taken away: {error}", EVICTED) from error
        finally:
            watch.end()
        ended = {**watch.reported, **(result.return_value or {})}
        if "checkpoint" not in ended and result.checkpoint is not None:
            ended["checkpoint"] = f"{self._root}/{quote(result.checkpoint.path.rpartition('/')[2])}"
        return ended

    def _hold(self, tenancy: Tenancy) -> ReservedSlice:
        """:raises NoSliceError: none in time."""
        self._outbox.tell(phase="waiting for a slice", message="")
        held = tenancy.take(self._until)
        self._sizes.begin(held, self._tally.began_from[-1])
        latest = self._outbox.latest
        slice_at = latest.slice_at if latest.first_at else time.time()
        self._outbox.tell(phase="setting up", slice_at=slice_at, message=f"on {', '.join(held.names)}")
        return held

    def _blame(self, errors: Mapping[int, BaseException], held: ReservedSlice | None = None) -> Exception:
        """Whose fault a failed gang is. The author's error wins over a lost host: hosts go down with the others."""
        errors = {rank: ours(error) or error for rank, error in errors.items()}
        for error in errors.values():
            if isinstance(error, ResizeError):
                # All that it says is saved, whatever became of the others on their way out.
                return error
        to_blame = first_to_blame(errors)
        if to_blame is not None and not to_blame.collateral:
            return to_blame
        for rank, error in sorted(errors.items()):
            if isinstance(error, RayTpuError):
                return error
            if not isinstance(error, AuthorError):
                return LostError(f"The worker of rank {rank} was lost: {first_line(error)}", EVICTED)
        if to_blame is None:
            return LostError("The workers ended and did not say why.", EVICTED)
        return cause_of(to_blame, held) if held else to_blame

    def _explain(self, error: BaseException) -> Exception:
        """What a failed start means."""
        from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError

        for cause in causes(error):
            if isinstance(cause, (RayTpuError, AuthorError)):
                return cause
            if isinstance(cause, WorkerGroupStartupTimeoutError):
                return TakenError(f"The workers did not get onto the slice within {_START_S:.0f} s.")
            if isinstance(cause, WorkerGroupStartupFailedError):
                return LostError(f"The workers could not be started: {first_line(error)}", EVICTED)
            if isinstance(cause, OSError):
                # Ray's controller writes a list of checkpoints after each report, and ends where storage refuses it.
                return LostError(f"Ray Train's controller was refused by storage: {first_line(cause)}", EVICTED)
        return PlaceError(f"Ray Train failed: {type(error).__name__}: {first_line(error)}", "The job's log has it all.")

    def _trainer(self, held: ReservedSlice, restore: Commit | None) -> JaxTrainer:
        from ray.train import CheckpointConfig, FailureConfig, RunConfig
        from ray.train.v2.jax import JaxTrainer

        from airflow_raytpu.runtime.gang import Gang, HandOver, ReportRelay, scaling

        name = self._request.name
        filesystem, path = files.locate(self._request.storage)
        os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = f"{_START_S:.0f}"
        for each, source in self._inputs.items():
            log.info("get_dataset_shard(%r): %s", each, shares(each, source, held.plan.workers))
        return JaxTrainer(
            functools.partial(run_loop, self._settings(held, restore)),
            train_loop_config=dict(self._arguments["train_loop_config"]),
            jax_config=Gang(use_tpu=True, request=name, plan=held.plan, hosts=held.hosts),
            scaling_config=scaling(held),
            run_config=RunConfig(
                name="checkpoints",
                storage_path=path,
                storage_filesystem=filesystem,
                # The two budgets are kept here: Ray counts a lost host as the author's failure.
                failure_config=FailureConfig(max_failures=0, max_preemption_failures=0, controller_failure_limit=0),
                checkpoint_config=CheckpointConfig(num_to_keep=None),
                callbacks=[HandOver(held), ReportRelay(name)],
            ),
            datasets=dict.fromkeys(self._inputs, _nothing),
            dataset_config=PerRank(self._inputs),
        )

    def _settings(self, held: ReservedSlice, restore: Commit | None) -> Settings:
        config = self._arguments["train_loop_config"]
        steps = config.get("steps")
        return Settings(
            request=self._request.name,
            loop=self._arguments["train_loop"],
            argv=self._arguments.get("argv"),
            workers=held.plan.workers,
            devices=held.plan.devices,
            root=self._root,
            policy=self._arguments["checkpoint"],
            lineage=self._lineage,
            restore=restore,
            total=steps if isinstance(steps, int) else 0,
            warm_start=self._warm_start,
            on_nan=self._arguments.get("on_nan", "stop"),
            nodes=frozenset(host.node_id for host in held.hosts),
            token=uuid.uuid4().hex[:8],
            profile=self._profile(),
            profile_uri=profiling.folder(self._request),
            may_grow=held.plan.workers < self._plan.workers,
            datasets=self._inputs,
        )

    def _profile(self) -> Profile | None:
        """What is still to be traced in this run."""
        asked = self._arguments.get("profiler")
        return Profile.from_dict(asked) if asked and not profiling.found(self._request, self._lineage) else None

    def _result(self, value: dict[str, Any]) -> dict[str, Any]:
        tally = self._tally
        if not value.get("step"):
            log.warning("The loop ended without having reported a step, by checkpoints.step or ray.train.report.")
        return {
            "step": value.get("step", 0),
            "metrics": value.get("metrics", {}),
            "checkpoint": value.get("checkpoint"),
            "best_step": value.get("best_step"),
            "best_checkpoint": value.get("best_checkpoint"),
            "resumed_from": tally.began_from[0],
            "warm_start": self._warm_start or None,
            "chip_hours": round(self._plan.slice.total_chips * tally.spent.held_s / 3600, 4),
            **tally.costs(),
            "series": self._series.uri,
            "profile": profiling.found(self._request, self._lineage) or None,
            "datasets": {
                name: value.get("datasets", {}).get(name) or shares(name, source, value["processes"])
                for name, source in self._inputs.items()
            },
            "processes": value["processes"],
            "devices": value["devices"],
        }


def _nothing() -> Any:
    """Stands where Ray Train wants a dataset: :class:`PerRank` makes the ones that are read."""
    import ray.data

    return ray.data.from_items([])
