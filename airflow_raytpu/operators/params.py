"""The DAG parameters that choose a slice, so that Airflow's trigger form offers the shapes that exist."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape, Tier
from airflow_raytpu.placement.topology import TpuSlice

_OFFERED_CHIPS = 256


def slice_params(default: str = "v6e:4x4", **more: Any) -> dict[str, Param]:
    """Parameters for ``DAG(params=...)``; use the choice as ``slice="{{ params.slice }}"``.

    :param default: the slice a run gets when nobody chooses.
    :param more: further parameters by name, each a ``Param`` or a plain default.
    :raises SliceShapeError: *default* does not exist.
    """
    chosen = str(TpuSlice.parse(default))
    offered = _offered(chosen)
    choice = Param(
        chosen,
        type="string",
        title="TPU slice",
        description="Accelerator and topology: chips along each side. Any other shape works as text too.",
        examples=list(offered),
        values_display=offered,
    )
    return {"slice": choice, **{name: _param(value) for name, value in more.items()}}


def accelerator_params(accelerator: str = "v6e", topology: str = "4x4") -> dict[str, Param]:
    """The same choice in two parameters; use it as ``slice="{{ params.accelerator }}:{{ params.topology }}"``.

    :raises SliceShapeError: the default does not exist.
    """
    chosen = TpuSlice(accelerator, topology)
    topologies = dict.fromkeys(shape.topology for shape in _documented())
    return {
        "accelerator": Param(
            chosen.accelerator,
            type="string",
            title="Accelerator",
            description="TPU generation.",
            enum=list(catalogue.GENERATIONS),
        ),
        "topology": Param(
            chosen.topology,
            type="string",
            title="Topology",
            description="Chips along each side of the slice; refused where the generation has no such topology.",
            enum=list(dict.fromkeys([chosen.topology, *topologies])),
        ),
    }


def _param(value: Any) -> Param:
    return value if isinstance(value, Param) else Param(value)


def _offered(chosen: str) -> dict[str, str]:
    """Slice text to what the form shows, the default first."""
    slices = [TpuSlice(shape.generation.name, shape.topology, 1, shape.machine_type) for shape in _documented()]
    slices.sort(key=lambda one: str(one) != chosen)
    return {str(one): f"{one.accelerator} {one.topology} ({_size(one)})" for one in slices}


def _documented() -> list[Shape]:
    return [shape for shape in catalogue.shapes() if shape.tier is Tier.DOCUMENTED and shape.chips <= _OFFERED_CHIPS]


def _size(tpu_slice: TpuSlice) -> str:
    hosts = "1 host" if tpu_slice.hosts == 1 else f"{tpu_slice.hosts} hosts"
    return f"{hosts}, {tpu_slice.chips} chips" if tpu_slice.chips > 1 else f"{hosts}, 1 chip"
