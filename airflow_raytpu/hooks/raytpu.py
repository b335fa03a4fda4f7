"""``RayTpuHook``: an Airflow connection as a :class:`Place`, the backend and the storage that a request uses."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.backends.kuberay.reach import Reach
from airflow_raytpu.hooks.kubernetes import KubernetesAccess
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.kuberay_rules import check_together
from airflow_raytpu.storage import objects

SIMULATED, KUBERAY = "simulated", "kuberay"
log = logging.getLogger(__name__)

DEFAULTS = {"deployment": "airflow", "storage": "", "poll_interval": "2.0"}
"""Of the options in Airflow's ``[raytpu]``; the provider info states the same for the documentation."""


def setting(name: str) -> str:
    """An option of the section ``[raytpu]`` of Airflow's configuration."""
    from airflow.sdk.configuration import conf

    return str(conf.get("raytpu", name, fallback=DEFAULTS[name]))


def read_airflows_own_connections() -> None:
    """Have connections in Airflow's database found by a command, which is no task and has no supervisor to ask.

    Airflow's own commands say so in the same way (3.3.2).
    """
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where requests run.

    :param backend: name of the backend.
    :param storage: normalised URI of the storage root, no slash at its end.
    :param root: folder of the simulated backend's state, its own default where empty.
    :param kubernetes_conn_id: for the KubeRay backend: the connection with Kubernetes credentials.
    :param options: for the KubeRay backend: its options that hold for every task.
    :param reach: for the KubeRay backend: the way to a cluster's Ray.
    :param stated: whether a connection says so, or none was there.
    """

    backend: str = SIMULATED
    storage: str
    root: str = ""
    kubernetes_conn_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)
    stated: bool = True

    def open(self) -> Backend:
        """A backend of this place; close it after use."""
        if self.backend == KUBERAY:
            from airflow_raytpu.backends.kuberay.backend import KubeRayBackend

            access = KubernetesAccess(self.kubernetes_conn_id)
            namespace = KubeRayOptions.from_dict(self.options).namespace
            return KubeRayBackend(access, namespace, setting("deployment"), self.reach)
        from airflow_raytpu.backends.simulated.backend import SimulatedBackend

        return SimulatedBackend(Path(self.root) if self.root else None)

    def options_of(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """The options of one request: what the task *stated* over what holds for all; empty on simulated slices.

        :raises RequestError: they contradict one another.
        """
        if self.backend != KUBERAY:
            return {}
        options = KubeRayOptions.over(self.options, stated)
        own = KubeRayOptions.from_dict(self.options).namespace
        if options.namespace != own:
            # Whoever looks for the object later, a trigger or the doctor, knows the connection alone.
            raise RequestError(
                f"The task's kuberay names the namespace {options.namespace}, and its connection {own}.",
                "Leave namespace out, and give the task the conn_id of a connection with the other one.",
            )
        check_together(options)
        return options.to_dict()


class RayTpuHook(BaseHook):
    """Reads a connection of type ``raytpu``.

    With no connection ``raytpu_default`` at all, requests run on simulated slices on this machine.

    :param conn_id: the connection.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "raytpu_default"
    conn_type = "raytpu"
    hook_name = "Ray on TPU"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    def place(self) -> Place:
        """The place, from synchronous code.

        :raises RequestError: the connection is unknown or names no known backend.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException as error:
            return self._without_connection(error)
        return self._read(connection)

    async def aplace(self) -> Place:
        """As :meth:`place`, for the triggerer and asynchronous tasks."""
        try:
            connection = await self.aget_connection(self.conn_id)
        except AirflowNotFoundException as error:
            return self._without_connection(error)
        return self._read(connection)

    async def same_place(self, *, stated: bool) -> Place:
        """As :meth:`aplace`, for a trigger that goes on with what a worker began.

        :param stated: a connection was there when the work began.
        :raises RequestError: it is gone.
        """
        place = await self.aplace()
        if stated and not place.stated:
            # Airflow reports a secrets backend in trouble as a connection that does not exist.
            raise RequestError(
                f"Connection {self.conn_id} was there when this task began and is gone.",
                "Add it again, or clear the task.",
            )
        return place

    @property
    def storage(self) -> str:
        """URI of the storage root, for tasks that put data beside the runs; from synchronous code."""
        return self.place().storage

    async def backend(self) -> Backend:
        """A backend of the connection's place; close it after use."""
        return (await self.aplace()).open()

    def get_conn(self) -> Backend:
        return self.place().open()

    def _without_connection(self, error: AirflowNotFoundException) -> Place:
        if self.conn_id != self.default_conn_name:
            raise RequestError(
                f"There is no connection {self.conn_id!r}.",
                f"Add it with type raytpu, or leave conn_id out to use {self.default_conn_name}.",
            ) from error
        return Place(storage=_storage(""), stated=False)

    def _read(self, connection: Any) -> Place:
        # Not connection.extra_dejson: what Airflow gives here is one of two classes, and only one of them can be asked
        # for that without blocking the event loop (Airflow 3.3).
        try:
            extra = json.loads(connection.extra or "{}")
        except ValueError as error:
            raise RequestError(
                f"The extra of connection {self.conn_id} is not JSON: {error}.", "Correct the connection."
            ) from error
        backend = extra.get("backend") or SIMULATED
        storage = _storage(extra.get("storage") or "")
        if backend == SIMULATED:
            return Place(storage=storage, root=extra.get("root") or "")
        if backend == KUBERAY:
            return self._kuberay(extra, storage)
        raise RequestError(
            f"Connection {self.conn_id} names the backend {backend!r}.",
            f"Known: {SIMULATED}, {KUBERAY}. Correct the connection.",
        )

    def _kuberay(self, extra: Mapping[str, Any], storage: str) -> Place:
        options = _json(extra.get("options") or {}, f"options of connection {self.conn_id}")
        stated = {name: extra[name] for name in ("namespace", "image") if extra.get(name)}
        if not storage.startswith("gs://"):
            log.warning(
                "Connection %s runs on Kubernetes with storage %s: the pods must share that folder with Airflow.",
                self.conn_id,
                storage,
            )
        return Place(
            backend=KUBERAY,
            storage=storage,
            kubernetes_conn_id=extra.get("kubernetes_conn_id") or "kubernetes_default",
            options=KubeRayOptions.over(options, stated).to_dict(),
            reach=Reach.of(extra.get("reach") or "auto", extra.get("url") or ""),
        )


def _json(stated: Any, what: str) -> dict[str, Any]:
    """An object, as itself or as the text that Airflow's form for connections makes of it."""
    try:
        found = json.loads(stated) if isinstance(stated, str) else stated
    except ValueError as error:
        raise RequestError(f"The {what} are not JSON: {error}.", "Correct the connection.") from error
    if not isinstance(found, dict):
        raise RequestError(f"The {what} are a {type(found).__name__}, not an object.", "Correct the connection.")
    return found


def _storage(stated: str) -> str:
    uri = stated or setting("storage") or _home()
    return objects.normalise(uri).rstrip("/")


def _home() -> str:
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    return str(Path(home).expanduser().absolute() / "raytpu")
