"""``RayTpuHook``: an Airflow connection as a :class:`Place`, the backend and the storage that a request uses."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.storage import objects

DEFAULTS = {"deployment": "airflow", "storage": "", "poll_interval": "2.0"}
"""Of the options in Airflow's ``[raytpu]``; the provider info states the same for the documentation."""


def setting(name: str) -> str:
    """An option of the section ``[raytpu]`` of Airflow's configuration."""
    from airflow.sdk.configuration import conf

    return str(conf.get("raytpu", name, fallback=DEFAULTS[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where requests run.

    :param backend: name of the backend.
    :param storage: normalised URI of the storage root, no slash at its end.
    :param root: folder of the simulated backend's state, its own default where empty.
    :param stated: whether a connection says so, or none was there.
    """

    backend: str = "simulated"
    storage: str
    root: str = ""
    stated: bool = True

    def open(self) -> Backend:
        """A backend of this place; close it after use."""
        from airflow_raytpu.backends.simulated.backend import SimulatedBackend

        return SimulatedBackend(Path(self.root) if self.root else None)


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
        backend = extra.get("backend") or "simulated"
        if backend != "simulated":
            raise RequestError(
                f"Connection {self.conn_id} names the backend {backend!r}.",
                "Known: simulated. Correct the connection.",
            )
        return Place(backend=backend, storage=_storage(extra.get("storage") or ""), root=extra.get("root") or "")


def _storage(stated: str) -> str:
    uri = stated or setting("storage") or _home()
    return objects.normalise(uri).rstrip("/")


def _home() -> str:
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    return str(Path(home).expanduser().absolute() / "raytpu")
