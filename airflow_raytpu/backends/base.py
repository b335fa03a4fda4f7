"""What every backend can do. Called from the triggers' watch loop and from operators; never the other way round."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from airflow_raytpu.model.observation import Observation
from airflow_raytpu.model.orphans import Orphan
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.model.slices import SliceState


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a job's log.

    :param offset: where the next line begins, in bytes: hand it to :meth:`Backend.tail` to go on after this one.
    """

    text: str
    offset: int


class Backend(Protocol):
    """One place that runs Ray on TPU slices.

    Every method may be called again at any time, by any process: what a request has is found by its name alone.
    Errors are those of :mod:`airflow_raytpu.model.errors`.
    """

    name: str

    async def ensure(self, request: RayRequest) -> bool:
        """Create what the request needs next, or adopt what is there; ``True`` once the whole of it is accepted.

        ``False`` means that it must wait (a cluster that is coming up) and wants to be called again.

        :raises ForeignObjectError: the name is taken by another owner.
        :raises RequestError: a shared cluster or service of that name is there and cannot become what is asked for.
        :raises LostError: the shared cluster it names is gone.
        :raises BackendUnreachable: no answer; call again.
        """
        ...

    async def observe(self, request: RayRequest) -> Observation:
        """Look; change nothing but the sign of life. Trouble on the way gives an unreachable observation.

        To see that a rollout on a service has succeeded also makes its version the one that the service keeps: who is
        told of the success can count on that.
        """
        ...

    async def wait(self, request: RayRequest, pause_s: float) -> None:
        """Return when it is worth looking again: after *pause_s* seconds, or when the backend was told of a change."""
        ...

    def tail(self, request: RayRequest, offset: int = 0) -> AsyncIterator[LogLine]:
        """Lines of the job's log from *offset* on as they come; ends when the job has ended. Resumes by itself."""
        ...

    async def stop(self, request: RayRequest) -> None:
        """End the work and free its slice: stop the job, delete the cluster it owns. Nothing to stop is no error.

        A shared cluster that was ever ready stays until its time to live is over, by :meth:`delete` too; one that never
        was goes with the request that made it. So does the service of a rollout where no version has proven good yet.
        """
        ...

    async def delete(self, request: RayRequest) -> None:
        """Remove everything of the request and return when it is gone. Nothing to remove is no error.

        A service ends by this alone, see :func:`~airflow_raytpu.model.application.service_called`.
        """
        ...

    async def slices(self, cluster_name: str | None = None) -> list[SliceState]:
        """The slices of one cluster as they are now, or of every cluster of ours that lives there.

        To name a cluster is a sign of life for it; to look at all is not. A slice of a cluster that is still coming up
        is ``STARTING``; where all are looked at, those of a cluster that does not answer are ``BROKEN``.

        :raises LostError: there is no such cluster, or it ended.
        :raises BackendUnreachable: no answer; ask again.
        """
        ...

    async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
        """What *deployment* left here and nobody has looked at for *older_than_s* seconds and its own time to live.

        Only what says in full that it is that deployment's. To look keeps nothing alive.

        :raises BackendUnreachable: no answer; ask again.
        """
        ...

    async def reap(self, orphan: Orphan) -> bool:
        """Remove *orphan* and return when it is gone; ``False`` where somebody has looked at it since it was found.

        Gone already, or another object by now, is no error.

        :raises ClusterError: it does not go.
        :raises BackendUnreachable: no answer; ask again.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
