"""Ray's Jobs and Serve REST APIs (Ray 2.60), asynchronous. Needs no Ray, and knows no backend.

What may pass by itself (401, 403, 429, 5xx, a lost connection, no answer in time) is tried again for a while and then
is :class:`~airflow_raytpu.model.errors.BackendUnreachable`. Every call may be repeated: a submission names its own id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import tenacity

from airflow_raytpu.backends import raylogs, raystatuses
from airflow_raytpu.backends.raypool import Connections
from airflow_raytpu.backends.rayslices import Listing, Row
from airflow_raytpu.backends.raystatuses import Job
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError, RequestError

_PASSING = {401, 403, 408, 425, 429}
"""Also a token that is just being written, or a proxy's; a wrong token is still wrong after the last try."""

_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 3.0
_LONGEST_ASKED_S = 10.0
"""The most of what ``Retry-After`` asks that one call waits: whoever called comes again anyway."""

_sleep = asyncio.sleep
_PING_S = 20.0
_IDLE_S = 2.0
_REOPEN_S = 1.0
_SHOWN = 500
_ROWS = 10_000
"""The most that the state API gives (Ray 2.60)."""


class _Refused(Exception):
    """The answer was an error that asking again will not change."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[-_SHOWN:].strip()}")
        self.status = status
        self.text = text


class _Passing(Exception):
    """The answer was an error that may pass.

    :param barred: what stands before the dashboard does not let us.
    :param after_s: how long the answer asks us to wait, 0 where it does not say.
    """

    def __init__(self, text: str, *, barred: bool = False, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.barred, self.after_s = barred, after_s


class Gate(Protocol):
    """What stands before a dashboard and wants credentials of its own, such as the Kubernetes API server's proxy."""

    async def arguments(self) -> dict[str, Any]:
        """Its credentials as they are now, and how to check its certificate: aiohttp's arguments of a request."""
        ...

    async def refused(self) -> None:
        """It answered 401."""
        ...


class RayApi:
    """One cluster's dashboard.

    :param url: its base URL.
    :param token: for token authentication; empty where it is off.
    :param gate: what stands before it, if anything does.
    """

    def __init__(self, url: str, token: str = "", gate: Gate | None = None) -> None:
        self._url = url.rstrip("/")
        # A gate keeps Authorization for itself; Ray takes its token in the other header as well (2.60).
        name = "X-Ray-Authorization" if gate else "Authorization"
        self._own = {name: f"Bearer {token}"} if token else {}
        self._gate = gate
        self._connections = Connections()

    async def close(self) -> None:
        await self._connections.close()

    async def _credentials(self) -> dict[str, Any]:
        """What each request carries, as aiohttp's arguments."""
        if self._gate is None:
            return {"headers": self._own}
        arguments = await self._gate.arguments()
        return {**arguments, "headers": {**arguments.get("headers", {}), **self._own}}

    async def version(self) -> dict[str, Any]:
        """Ray's version and session name."""
        return dict(await self._get("/api/version"))

    async def submit_job(
        self, submission_id: str, entrypoint: str, runtime_env: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Job | None:
        """Submit; ``None`` when it was accepted now, the job that is there when the id is taken already.

        :raises RequestError: Ray refuses what is submitted.
        """
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": dict(runtime_env),
            "metadata": dict(metadata),
        }
        try:
            await self._ask("POST", "/api/jobs/", json=body)
        except _Refused as refusal:
            # Ray 2.60 says it with status 500, not 409.
            if "already exists" in refusal.text:
                found = await self.get_job(submission_id)
                if found is not None:
                    return found
            raise RequestError(f"Ray refuses job {submission_id}: {refusal}.") from refusal
        return None

    async def get_job(self, submission_id: str) -> Job | None:
        """The job; ``None`` where there is none."""
        path = f"/api/jobs/{submission_id}"
        try:
            text = await self._ask_if_there("GET", path)
            return raystatuses.job(json.loads(text)) if text is not None else None
        except (_Refused, ValueError) as error:
            raise self._not_rays(path, error) from error

    async def stop_job(self, submission_id: str) -> None:
        """SIGTERM to all its processes, SIGKILL after ``RAY_JOB_STOP_WAIT_TIME_S``; returns before that."""
        path = f"/api/jobs/{submission_id}/stop"
        try:
            await self._ask_if_there("POST", path)
        except _Refused as error:
            raise self._not_rays(path, error) from error

    async def delete_job(self, submission_id: str) -> None:
        """Forget an ended job, so that its id is free again.

        :raises RequestError: it has not ended.
        """
        try:
            await self._ask_if_there("DELETE", f"/api/jobs/{submission_id}")
        except _Refused as refusal:
            raise RequestError(f"Ray does not delete job {submission_id}: {refusal}.") from refusal

    def follow_logs(self, submission_id: str, offset: int = 0) -> AsyncGenerator[bytes]:
        """The job's log, as :func:`raylogs.follow` says."""
        return raylogs.follow(self, submission_id, offset, idle_s=_IDLE_S, reopen_s=_REOPEN_S)

    async def body(self, path: str) -> AsyncGenerator[bytes]:
        """What is there, in pieces; nothing where there is nothing. Asked for once.

        :raises BackendUnreachable: no good answer, or one that broke off.
        """
        try:
            async with self._answer("GET", path) as answer:
                async for piece in answer.content.iter_any():
                    yield piece
        except _Refused as refusal:
            if refusal.status != 404:
                raise self._not_rays(path, refusal) from refusal
        except (_Passing, aiohttp.ClientError, OSError) as error:
            raise BackendUnreachable(f"{self._url}{path}: {type(error).__name__}: {error}.") from error

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """A connection that the dashboard writes to."""
        async with self._connections.session().ws_connect(
            self._url + path, heartbeat=_PING_S, max_msg_size=0, **await self._credentials()
        ) as socket:
            yield socket

    async def listing(self) -> Listing:
        """Nodes, and what is known of who holds what, each as Ray has it at this moment."""
        nodes, groups, creating, living, tasks, jobs = await asyncio.gather(
            self._rows("nodes"),
            self._rows("placement_groups", "state", "!=", "REMOVED"),
            self._rows("actors", "state", "=", "PENDING_CREATION"),
            self._rows("actors", "state", "=", "ALIVE"),
            self._rows("tasks", "state", "=", "RUNNING"),
            self._get("/api/jobs/"),
        )
        return Listing(nodes=nodes, groups=groups, actors=[*creating, *living], tasks=tasks, jobs=jobs)

    async def _rows(self, what: str, *condition: str) -> list[Row]:
        """Rows of Ray's state API that meet *condition*: a column, ``=`` or ``!=``, and a value."""
        names = ("filter_keys", "filter_predicates", "filter_values")
        asked = {"detail": "1", "limit": str(_ROWS), **dict(zip(names, condition, strict=False))}
        answer = await self._get(f"/api/v0/{what}?{urlencode(asked)}")
        try:
            return list(answer["data"]["result"]["result"])
        except (KeyError, TypeError) as error:
            raise BackendUnreachable(f"{self._url} lists its {what} in a form that is not known.") from error

    async def serve_status(self) -> dict[str, Any]:
        """Serve's applications and their deployments, as Ray says it."""
        return dict(await self._get("/api/serve/applications/"))

    async def put_serve(self, config: Mapping[str, Any]) -> None:
        """Make Serve's applications what *config* says.

        :raises RequestError: Ray refuses it.
        """
        try:
            await self._ask("PUT", "/api/serve/applications/", json=dict(config))
        except _Refused as refusal:
            raise RequestError(f"Ray refuses this Serve configuration: {refusal}.") from refusal

    async def upload_package(self, name: str, data: bytes) -> str:
        """Hand a zip to the cluster under a name made from its content; its URI for a ``runtime_env``."""
        if await self._ask_if_there("GET", f"/api/packages/gcs/{name}") is None:
            await self._ask("PUT", f"/api/packages/gcs/{name}", data=data)
        return f"gcs://{name}"

    async def _get(self, path: str) -> Any:
        try:
            return json.loads(await self._ask("GET", path))
        except (_Refused, ValueError) as error:
            raise self._not_rays(path, error) from error

    def _not_rays(self, path: str, error: Exception) -> BackendUnreachable:
        return BackendUnreachable(f"{self._url}{path} is not Ray's: {error}.", "Look what listens there.")

    async def _ask_if_there(self, method: str, path: str) -> str | None:
        try:
            return await self._ask(method, path)
        except _Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def _ask(self, method: str, path: str, **body: Any) -> str:
        """One request, tried again where the fault may pass.

        :raises _Refused: an answer that will stay.
        :raises BackendUnreachable: no good answer.
        """
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((_Passing, aiohttp.ClientError, OSError, TimeoutError)),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_pause,
            sleep=_sleep,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._ask_once(method, path, body)
        except (_Passing, aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, _Passing) and error.barred:
                raise ForbiddenError(
                    f"{method} {self._url}{path} is not allowed: {error}",
                    "Let it get, create, update and delete services/proxy (docs/kubernetes/role.yaml).",
                ) from error
            raise BackendUnreachable(
                f"{method} {self._url}{path} gave no good answer in {_TRIES} tries: {type(error).__name__}: {error}",
                "Look whether the cluster's head still runs.",
            ) from error
        raise AssertionError("tenacity either returns or raises")

    async def _ask_once(self, method: str, path: str, body: Mapping[str, Any]) -> str:
        async with self._answer(method, path, **body) as answer:
            return await answer.text(errors="replace")

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **body: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A good answer, not read yet.

        :raises _Passing: it was an error that may pass.
        :raises _Refused: it was one that will stay.
        """
        session = self._connections.session()
        async with session.request(method, self._url + path, **await self._credentials(), **body) as answer:
            if answer.status < 400:
                yield answer
                return
            text = await answer.text(errors="replace")
            if answer.status == 401 and self._gate is not None:
                await self._gate.refused()
            if self._gate is not None and '"kind":"Status"' in text.replace(" ", ""):
                # The gate's own word, not Ray's: its 404 says that the head's service is not there, and of no job.
                raise _Passing(f"HTTP {answer.status}: {text[-_SHOWN:].strip()}", barred=answer.status == 403)
            if answer.status in _PASSING or (answer.status >= 500 and "already exists" not in text):
                after = answer.headers.get("Retry-After", "")
                # The other form, a date, is for caches; no dashboard or proxy of ours sends it.
                after_s = float(after) if after.isdecimal() else 0.0
                raise _Passing(f"HTTP {answer.status}: {text[-_SHOWN:].strip()}", after_s=after_s)
            raise _Refused(answer.status, text)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds before the next try: growing ones, and what the answer asks for where that is more."""
    error = state.outcome.exception() if state.outcome else None
    asked_s = error.after_s if isinstance(error, _Passing) else 0.0
    growing = tenacity.wait_random_exponential(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    return max(growing(state), min(asked_s, _LONGEST_ASKED_S))
