"""A small Ray dashboard on loopback, with the habits of Ray 2.60 and faults to order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSCloseCode, web

_ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


@dataclass
class RayDashboard:
    """Jobs, their logs and the faults that requests meet, in order: each request takes one from :attr:`faults`.

    A fault is an HTTP status, or ``drop`` (carried out, then the connection is cut instead of an answer), ``cut`` (cut
    in the middle of the answer's body), ``later 7`` (503, and word to come back after so many seconds) or ``slow`` (no
    answer at all).

    :param rows: what the state API lists, by its last word of the path.
    :param log_batches: what each connection to a log sends before it closes; the last one serves all later connections.
    :param log_stays_open: a connection to a log is not closed from this side.
    """

    token: str = "secret"
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    log_batches: list[str] = field(default_factory=list)
    log_stays_open: bool = False
    packages: dict[str, bytes] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=lambda: {"applications": {}})
    faults: list[int | str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    url: str = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RayDashboard]:
        app = web.Application(middlewares=[self._meet_fault])
        app.add_routes(
            [
                web.get("/api/version", self._version),
                web.post("/api/jobs/", self._submit),
                web.get("/api/jobs/", self._jobs),
                web.get("/api/v0/{what}", self._rows),
                web.get("/api/jobs/{id}", self._job),
                web.post("/api/jobs/{id}/stop", self._stop),
                web.delete("/api/jobs/{id}", self._delete),
                web.get("/api/jobs/{id}/logs", self._log),
                web.get("/api/jobs/{id}/logs/tail", self._tail),
                web.get("/api/serve/applications/", self._serve_status),
                web.put("/api/serve/applications/", self._serve_put),
                web.get("/api/packages/gcs/{name}", self._package),
                web.put("/api/packages/gcs/{name}", self._upload),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def end(self, job: str, status: str = "SUCCEEDED") -> None:
        self.jobs[job]["status"] = status

    @web.middleware
    async def _meet_fault(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        names = ("Authorization", "X-Ray-Authorization")
        if f"Bearer {self.token}" not in {request.headers.get(name) for name in names}:
            return web.Response(status=401, text="Unauthenticated")
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return web.Response(status=fault, text=f"fault {fault}")
        if str(fault).startswith("later"):
            return web.Response(status=503, headers={"Retry-After": str(fault).split()[1]})
        if fault == "slow":
            await asyncio.Event().wait()
        answer: web.StreamResponse = await handler(request)
        if fault == "drop":
            request.transport.abort()
        if fault == "cut":
            part = web.StreamResponse(headers={"Content-Length": "1000"})
            await part.prepare(request)
            await part.write(b'{"status": ')
            request.transport.abort()
            return part
        return answer

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"ray_version": "2.60.0", "session_name": "s"})

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["submission_id"]
        if name in self.jobs:
            return web.Response(
                status=500, text=f"Traceback ...\nValueError: Job with submission_id {name} already exists. Please use"
            )
        if not body["entrypoint"]:
            return web.Response(status=400, text="entrypoint is missing")
        self.jobs[name] = {**body, "status": "RUNNING", "message": "Job is currently running."}
        return web.json_response({"submission_id": name})

    async def _jobs(self, _: web.Request) -> web.Response:
        return web.json_response([{**job, "submission_id": name} for name, job in self.jobs.items()])

    async def _rows(self, request: web.Request) -> web.Response:
        asked = request.query
        if int(asked.get("limit", 100)) > 10_000:
            return web.Response(status=400, text="Given limit exceeds the supported limit 10000.")
        rows = self.rows.get(request.match_info["what"], [])
        if column := asked.get("filter_keys"):
            equal = {"=": True, "!=": False}[asked["filter_predicates"]]
            rows = [row for row in rows if (row.get(column) == asked["filter_values"]) is equal]
        # Only what is asked for in detail has labels' neighbours, such as times and bundles.
        return web.json_response({"result": True, "data": {"result": {"result": rows if "detail" in asked else []}}})

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def _stop(self, request: web.Request) -> web.Response:
        self._found(request)["status"] = "STOPPED"
        return web.json_response({"stopped": True})

    async def _delete(self, request: web.Request) -> web.Response:
        if self._found(request)["status"] not in _ENDED:
            return web.Response(status=400, text="Job is in a non-terminal state")
        del self.jobs[request.match_info["id"]]
        return web.json_response({"deleted": True})

    async def _log(self, request: web.Request) -> web.Response:
        self._found(request)
        return web.json_response({"logs": self.logs.get(request.match_info["id"], "")})

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        self._found(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        batch = self.log_batches.pop(0) if len(self.log_batches) > 1 else self.log_batches[0]
        for line in batch.splitlines(keepends=True):
            await socket.send_str(line)
        if self.log_stays_open:
            await socket.receive()
        await socket.close(code=WSCloseCode.OK)
        return socket

    async def _serve_status(self, _: web.Request) -> web.Response:
        return web.json_response(self.serve)

    async def _serve_put(self, request: web.Request) -> web.Response:
        self.serve = await request.json()
        return web.Response()

    async def _package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _upload(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    def _found(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["id"]
        if name not in self.jobs:
            raise web.HTTPNotFound(text=f"Job {name} does not exist")
        return self.jobs[name]
