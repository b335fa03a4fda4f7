"""``TpuSliceSensor`` waits until whole idle TPU slices are there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from airflow_raytpu.hooks.raytpu import Place, RayTpuHook
from airflow_raytpu.model import errors
from airflow_raytpu.model.errors import NoSliceError, RequestError
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._lifecycle import lend
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.triggers.capacity import CapacityTrigger, Lookout, Wish

_AIRFLOW_WAITS_LONGER = timedelta(minutes=2)


class TpuSliceSensor(BaseSensorOperator):
    """Wait until *count* whole idle slices of a shape are there.

    Whole means that every host of the slice lives, each worker id once, with all its chips; idle, that no job holds
    any of it. Nothing is reserved: another job may be faster.

    Returns ``{"cluster", "slices"}``: the cluster that has them, and their names; a task takes the first as its
    ``cluster=sensor.output["cluster"]``. When *timeout* is over it fails for good, as sensors do, and says what was
    there: present, busy and with whom, broken and why.

    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``.
    :param count: how many of it.
    :param cluster: a :class:`RayTpuClusterOperator` task, or a cluster's name; left out, any one cluster that has them.
    :param conn_id: connection of type ``raytpu``; with none defined, simulated slices on this machine.
    :param deferrable: wait in the triggerer, not in a worker slot.
    :param poke_interval: between two looks.
    """

    template_fields: Sequence[str] = ("slice", "count", "cluster", "conn_id")
    ui_color = "#d2e3fc"

    def __init__(
        self,
        *,
        slice: TpuSlice | str,  # noqa: A002 - the author's word
        count: int | str = 1,
        cluster: Any = None,
        conn_id: str = RayTpuHook.default_conn_name,
        deferrable: bool = True,
        poke_interval: timedelta | float = 15.0,
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        # Each key of the returned value is an XCom of its own, so that sensor.output["cluster"] works.
        super().__init__(poke_interval=poke_interval, multiple_outputs=multiple_outputs, **kwargs)
        self.slice = _arguments.slice_text(slice)
        self.count = count
        self.cluster = lend(cluster, self)
        self._on_cluster = cluster is not None
        self.conn_id = conn_id
        self.deferrable = deferrable
        self._late: NoSliceError | None = None
        if _arguments.is_literal(count):
            _number(count)

    def execute(self, context: Any) -> Any:
        try:
            wish = self._wish()
            if self.deferrable:
                return self._look_or_defer(wish)
            return super().execute(context)
        except RequestError as error:
            raise AirflowFailException(str(error)) from error
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(str(self._late)) from error

    def poke(self, context: Any) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        granted = asyncio.run(self._look(self._wish(), RayTpuHook(self.conn_id).place()))
        return PokeReturnValue(is_done=granted is not None, xcom_value=granted)

    def finish(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Called with the trigger's event."""
        if "granted" in event:
            return dict(event["granted"])
        error = errors.from_code(event["code"], event["cause"], event["lever"])
        if isinstance(error, NoSliceError):
            # What Airflow knows as the end of a sensor's time: no retry, and a skip where soft_fail says so.
            raise AirflowSensorTimeout(str(error))
        raise error

    def _look_or_defer(self, wish: Wish) -> dict[str, Any]:
        place = RayTpuHook(self.conn_id).place()
        granted = asyncio.run(self._look(wish, place))
        if granted is None:
            self.defer(
                trigger=CapacityTrigger(asdict(wish), self.conn_id, self.poke_interval, stated=place.stated),
                method_name="finish",
                timeout=timedelta(seconds=self.timeout) + _AIRFLOW_WAITS_LONGER,
            )
        return granted

    async def _look(self, wish: Wish, place: Place) -> dict[str, Any] | None:
        """What grants the wish now."""
        backend = place.open()
        try:
            lookout = Lookout(backend, wish, log=self.log, poll_s=self.poke_interval)
            granted = await lookout.look()
            self._late = lookout.too_late()
            if granted is None:
                self.log.info("waiting for %s: %s", wish.describe(), lookout.seen)
            return granted
        finally:
            await backend.close()

    def _wish(self) -> Wish:
        """:raises RequestError: what was rendered is no slice, no number or no cluster."""
        target = _arguments.target(self.slice, self.cluster)
        if self._on_cluster and target.cluster is None:
            raise _arguments.no_cluster(None)
        asked = TpuSlice.parse(target.slice)
        if asked.part_of:
            raise RequestError(
                f"{target.slice} is a part of a slice, and only whole slices are waited for.",
                f"Ask for {asked.accelerator}:{asked.part_of}; a job finds its part by itself.",
            )
        return Wish(
            slice=target.slice,
            count=_number(self.count),
            cluster=target.cluster,
            known=target.facts is not None,
            begun_at=time.time(),
            timeout_s=float(self.timeout),
        )


def _number(count: Any) -> int:
    """:raises RequestError: *count* is no number of slices."""
    try:
        number = int(count)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or number != float(count):
        raise RequestError(f"count is {count!r}, which is no number of slices.", "Give count a whole number from 1 on.")
    return number
