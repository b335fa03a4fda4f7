"""Serve: a rollout that ends healthy, or back on the last good version. Also the builder that Serve itself calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_raytpu.model.application import GOOD, PROVEN_AT, REPLICA, configuration
from airflow_raytpu.model.errors import BackendUnreachable, RolloutError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import author, replicas
from airflow_raytpu.runtime.applications import Applications, AppView, Health
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.turns import turn

if TYPE_CHECKING:
    from ray.serve import Application

_POLL_S = 0.5
_STEADY = 3
"""Healthy looks in a row that count as healthy: a replica that flaps shows one now and then."""

_ROLLBACK_S = 120.0
_SMOKE_SETTLES_S = 10.0
_SMOKE_TIMEOUT_S = 30.0
_MESSAGE_LINES = 30
_EARLIER_S = 10.0
"""Before Airflow's side ends the wait, which would speak of a slice."""

_LEVER = "Mend the version and deploy again; the application's replicas have their own logs in the Ray dashboard."

log = logging.getLogger(__name__)


def build(args: Mapping[str, Any]) -> Application:
    """Serve's entry point, ``import_path: airflow_raytpu.runtime.serve:build``: the author's application."""
    make = author.load(args["app"])
    with replicas.given(args.get(REPLICA)):
        return make(args["model"], **args["app_args"])


def run(request: RayRequest, outbox: Outbox) -> Mapping[str, Any]:
    """Roll out as *request* says.

    :raises RolloutError: the new version did not become healthy; the last good one serves again.
    """
    rollout = _Rollout(request, outbox, Applications())
    with turn(
        request.arguments["name"],
        request.name,
        request.limits.slice_until - _EARLIER_S,
        lambda seen: outbox.tell(phase="waiting for its turn", message=seen),
    ):
        return rollout.run()


class _Rollout:
    def __init__(self, request: RayRequest, outbox: Outbox, applications: Applications) -> None:
        self._outbox, self._applications = outbox, applications
        self._config = configuration(request)
        self._name: str = self._config["name"]
        self._version: str = self._config["args"]["version"]
        rollout = request.arguments["rollout"]
        self._smoke: list[dict[str, Any]] = rollout["smoke"]
        self._limits, self._deadline_s = request.limits, rollout["deadline_s"]
        self._until = 0.0
        self._stated_good: Mapping[str, Any] | None = request.arguments.get(GOOD)
        replica = request.arguments.get(REPLICA)
        self._plan = plan(TpuSlice.parse(replica)) if replica else None
        route = self._config["route_prefix"].rstrip("/")
        self._url = self._applications.endpoint + route
        self._public = self._applications.public + route

    def run(self) -> Mapping[str, Any]:
        if self._plan is not None:
            self._choose_slice(self._plan)
        self._until = min(time.time() + self._deadline_s, self._limits.total_until)
        self._outbox.tell(phase="deploying", unit="replica", slice_at=time.time())
        good = self._last_good()
        try:
            self._deploy(self._config)
            running = self._wait_healthy(self._config, self._until)
            if self._plan is not None:
                replicas.prove(self._plan, self._name, self._config["args"][REPLICA])
            answers = self._smoke_test()
        except (RolloutError, BackendUnreachable) as error:
            raise self._rolled_back(error, good) from error
        except BaseException:
            # Told to stop in the middle: nobody has proven this version.
            log.info("stopped in the middle of a rollout")
            self._roll_back(good)
            raise
        self._applications.keep_good(self._name, self._config)
        previous = (good or {}).get("args", {}).get("version")
        return {
            "endpoint": self._public or "/",
            "application": self._name,
            "version": self._version,
            "previous": previous,
            "replicas": running,
            "smoke": answers,
            PROVEN_AT: time.time(),
        }

    def _last_good(self) -> Mapping[str, Any] | None:
        """What to go back to; ``None`` where there was nothing good."""
        # What is not there now was taken away on purpose, and is not brought back, unless the service itself states it.
        kept = self._applications.last_good(self._name) if self._applications.view(self._name) else None
        return kept or self._stated_good

    def _choose_slice(self, slice_plan: SlicePlan) -> None:
        """Pin the replica to a free slice; a version that runs already keeps its own."""
        view = self._look()
        theirs = (view.config.get("args") or {}) if view is not None and view.version == self._version else {}
        chosen = theirs.get(REPLICA) or replicas.choose(
            slice_plan,
            self._limits.slice_until,
            lambda seen: self._outbox.tell(phase="waiting for a slice", message=seen),
        )
        self._config = {**self._config, "args": {**self._config["args"], REPLICA: chosen}}

    def _deploy(self, config: Mapping[str, Any]) -> None:
        view = self._applications.view(self._name)
        if view is not None and view.health is Health.HEALTHY and view.config.get("args") == config["args"]:
            log.info("version %s of %s runs already", config["args"]["version"], self._name)
            return
        self._applications.put(self._name, config)

    def _wait_healthy(self, config: Mapping[str, Any], until: float) -> int:
        """Replicas that run, once *config* is healthy for several looks in a row.

        :raises RolloutError: Serve gave it up, or it took too long.
        """
        version, steady, last = config["args"]["version"], 0, None
        while time.time() < until:
            view = self._look()
            if view is not None and view.version != version:
                # Somebody who deployed another application put back what he had read before us.
                log.warning("version %s of %s was put in our place; putting ours again", view.version, self._name)
                self._applications.put(self._name, config)
            elif view is not None:
                last = view
                self._outbox.tell(done=view.running, total=view.wanted, message=f"version {version}")
                if view.health is Health.FAILED:
                    raise RolloutError(
                        f"Version {version} of {self._name} could not be deployed.\n{_tail(view)}", _LEVER
                    )
                steady = steady + 1 if view.health is Health.HEALTHY else 0
                if steady == _STEADY:
                    return view.running
            time.sleep(_POLL_S)
        seen = f"{last.running} of {last.wanted} replicas run. {_tail(last)}" if last else "Serve never showed it."
        raise RolloutError(f"Version {version} of {self._name} was not healthy in time: {seen}", _LEVER)

    def _look(self) -> AppView | None:
        try:
            return self._applications.view(self._name)
        except BackendUnreachable as error:
            log.warning("%s", error)
            return None

    def _smoke_test(self) -> list[dict[str, Any]]:
        """The answers to the smoke requests, through the real endpoint.

        :raises RolloutError: one was not as it should be.
        """
        answers = []
        for number, wish in enumerate(self._smoke, 1):
            self._outbox.tell(phase="smoke", unit="request", done=number - 1, total=len(self._smoke), message="")
            answers.append(self._settled(Smoke.of(wish), number))
        if self._smoke:
            self._outbox.tell(done=len(self._smoke))
        return answers

    def _settled(self, smoke: Smoke, number: int) -> dict[str, Any]:
        # The proxy learns a new route a moment after the replicas are healthy.
        until = time.time() + _SMOKE_SETTLES_S
        while True:
            answer, fault = smoke.ask(self._url)
            if not fault:
                return answer
            if time.time() > until:
                what = f"failed smoke request {number} of {len(self._smoke)}: {fault}"
                raise RolloutError(f"Version {self._version} of {self._name} {what}", _LEVER)
            time.sleep(_POLL_S)

    def _rolled_back(self, error: RolloutError | BackendUnreachable, good: Mapping[str, Any] | None) -> RolloutError:
        after = self._roll_back(good)
        log.info("%s", after)
        return RolloutError(f"{error.cause}\n{after}", error.lever or _LEVER)

    def _roll_back(self, good: Mapping[str, Any] | None) -> str:
        """Put the last good version back; a sentence that says what serves now."""
        self._outbox.tell(phase="rolling back", done=0, total=0, message="")
        if good is None:
            self._applications.put(self._name, None)
            return "No earlier version had proven good, so the application was removed."
        version = good["args"]["version"]
        self._deploy(good)
        try:
            self._wait_healthy(good, time.time() + _ROLLBACK_S)
        except RolloutError as error:
            log.warning("%s", error)
            return f"Version {version}, the last good one, was put back but is not healthy yet."
        return f"Version {version}, the last good one, serves again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """One smoke request, see :class:`airflow_raytpu.model.policies.Rollout`."""

    method: str
    path: str
    status: int
    json: Any
    contains: str

    @classmethod
    def of(cls, wish: Mapping[str, Any]) -> Smoke:
        return cls(
            method=wish.get("method", "POST" if "json" in wish else "GET"),
            path=wish.get("path", "/"),
            status=wish.get("status", 200),
            json=wish.get("json"),
            contains=wish.get("contains", ""),
        )

    def ask(self, base: str, clock: Callable[[], float] = time.perf_counter) -> tuple[dict[str, Any], str]:
        """The answer, and what is wrong with it; an empty text where nothing is."""
        import requests

        began = clock()
        try:
            reply = requests.request(
                self.method,
                base + "/" + self.path.lstrip("/"),
                json=self.json,
                timeout=_SMOKE_TIMEOUT_S,
            )
        except requests.RequestException as error:
            return {}, f"no answer ({error})"
        answer = {"status": reply.status_code, "latency_ms": round((clock() - began) * 1000, 1)}
        if reply.status_code != self.status:
            return answer, f"status {reply.status_code} where {self.status} is due: {reply.text[:200]}"
        if self.contains not in reply.text:
            return answer, f"the answer lacks {self.contains!r}: {reply.text[:200]}"
        return answer, ""


def _tail(view: AppView) -> str:
    return "\n".join(view.message.splitlines()[-_MESSAGE_LINES:])
