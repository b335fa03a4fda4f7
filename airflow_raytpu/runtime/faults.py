"""What Ray's own errors mean in ours."""

from __future__ import annotations

from collections.abc import Iterator

import ray

from airflow_raytpu.model.errors import LostError, RayTpuError
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.slices import LOSS_SHOWS_S, ReservedSlice, loss

EVICTED = (
    "RetryBudget(evictions=...) says how often such a loss is made good; the next try goes on from what was saved."
)


def causes(error: BaseException) -> Iterator[BaseException]:
    """*error* and what led to it, Ray's wrapping taken off."""
    seen: BaseException | None = error
    while seen is not None:
        while isinstance(seen, ray.exceptions.RayTaskError) and isinstance(seen.cause, BaseException):
            seen = seen.cause
        yield seen
        seen = seen.__cause__


def ours(error: BaseException) -> RayTpuError | AuthorError | None:
    """The error of this package inside *error*, ``None`` where there is none."""
    return next((cause for cause in causes(error) if isinstance(cause, (RayTpuError, AuthorError))), None)


def meaning(error: BaseException, who: str) -> BaseException:
    """What an error that *who*, a host, answered with means: ours where it is in there, a loss where it is gone."""
    inner = ours(error)
    if inner is not None:
        return inner
    if isinstance(
        error, (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError)
    ):
        return LostError(f"{who} was lost: {first_line(error)}", EVICTED)
    return error


def cause_of(error: AuthorError, held: ReservedSlice) -> AuthorError | LostError:
    """*error*; or the loss of a host of *held* that it is the echo of, which the others know of before Ray does."""
    lost = loss(held, LOSS_SHOWS_S) if error.collateral else ""
    return LostError(f"{lost} The others said: {error.cause}", EVICTED) if lost else error


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
