"""What a slice means for whoever runs on it: workers, devices, resources. Nobody else counts hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_raytpu.model.errors import BatchSizeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.topology import TpuSlice


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """One worker per host, all chips of the host.

    :param workers: Ray workers in all, one per host.
    :param chips_per_worker: chips of each, and so JAX devices (v4 and v5p: Ray counts chips, not cores).
    :param accelerator_type: what Ray Train calls it (Ray 2.60), ``TPU-V6E``.
    :param accelerator_version: what ``ray.util.tpu`` calls it, ``v6e``.
    :param pod_type: ``TPU_ACCELERATOR_TYPE`` of each host.
    """

    slice: TpuSlice
    workers: int
    chips_per_worker: int
    accelerator_type: str
    accelerator_version: str
    pod_type: str

    @property
    def devices(self) -> int:
        return self.workers * self.chips_per_worker

    @property
    def chip_hours_per_hour(self) -> int:
        """What an hour of it costs, in the unit that prices and quotas count in."""
        return self.devices

    @property
    def bundle(self) -> dict[str, int]:
        """Ray resources of one worker: a whole host, because GKE gives a pod all chips of its node or none."""
        return {"CPU": 1, "TPU": self.chips_per_worker}

    @property
    def bundles(self) -> list[dict[str, int]]:
        """A placement group for the whole: one bundle for each worker."""
        return [self.bundle for _ in range(self.workers)]

    @property
    def resources(self) -> dict[str, int]:
        """Ray resources that the slices show when all their hosts are there (CPUs aside). A part has no head."""
        heads = {} if self.slice.part_of else {self.slice.shape.head_resource: self.slice.num_slices}
        return {"TPU": self.devices, **heads}

    @property
    def node_selector(self) -> dict[str, str]:
        return self.slice.whole.node_selector

    @property
    def mesh(self) -> tuple[int, ...]:
        """Mesh shape hint for data parallelism: a slice axis where there are several, then the chips."""
        return self._over_slices(self.slice.chips)

    @property
    def meshes(self) -> dict[str, tuple[int, ...]]:
        """Mesh shape hints, each over all devices, by how the author would use it.

        ``flat`` for data parallelism, ``hosts`` with one axis over hosts and one over the chips of a host (tensor
        parallelism inside a host), ``torus`` along the slice's own sides.
        """
        sides = tuple(side for side in catalogue.dimensions(self.slice.topology) if side > 1) or (1,)
        return {
            "flat": self.mesh,
            "hosts": self._over_slices(self.slice.hosts, self.chips_per_worker),
            "torus": self._over_slices(*sides),
        }

    def to_dict(self) -> dict[str, Any]:
        """For people and for JSON."""
        return {
            "slice": str(self.slice),
            "accelerator": self.slice.accelerator,
            "topology": self.slice.topology,
            "part_of": self.slice.part_of,
            "num_slices": self.slice.num_slices,
            "machine_type": self.slice.machine_type,
            "hosts": self.workers,
            "chips": self.devices,
            "chips_per_host": self.chips_per_worker,
            "pod_type": self.pod_type,
            "node_selector": self.node_selector,
            "resources": self.resources,
            "mesh": {name: list(shape) for name, shape in self.meshes.items()},
            "chip_hours_per_hour": self.chip_hours_per_hour,
        }

    def sized(self, num_slices: int) -> SlicePlan:
        """The plan for so many of these slices."""
        return self if num_slices == self.slice.num_slices else plan(replace(self.slice, num_slices=num_slices))

    def check_batch(self, batch_size: int, what: str = "batch_size") -> None:
        """:raises BatchSizeError: a global batch of *batch_size* rows does not divide over all devices."""
        if batch_size < 1 or batch_size % self.devices:
            below, above = batch_size // self.devices * self.devices, (batch_size // self.devices + 1) * self.devices
            nearest = " or ".join(str(size) for size in (below, above) if size > 0) or str(self.devices)
            raise BatchSizeError(
                f"{what} is {batch_size}, which does not divide over {self.devices} chips ({self.workers} hosts x "
                f"{self.chips_per_worker} of {self.slice.accelerator} {self.slice.topology}).",
                f"Use a multiple of {self.devices}: {nearest}.",
            )

    def _over_slices(self, *axes: int) -> tuple[int, ...]:
        return (self.slice.num_slices, *axes) if self.slice.num_slices > 1 else axes


def plan(tpu_slice: TpuSlice) -> SlicePlan:
    """The plan for *tpu_slice*."""
    generation = tpu_slice.shape.generation
    return SlicePlan(
        slice=tpu_slice,
        workers=tpu_slice.total_hosts,
        chips_per_worker=tpu_slice.chips_per_host,
        accelerator_type=generation.ray_type,
        accelerator_version=generation.ray_version,
        pod_type=tpu_slice.whole.pod_type,
    )


def whole_number(value: Any, what: str) -> int:
    """A number of rows: a template gives text unless the DAG renders native objects.

    :raises BatchSizeError: it is no whole number.
    """
    lever = f"Give {what} as rows of one global batch."
    try:
        number = int(value)
        whole = number == float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BatchSizeError(f"{what} is {value!r}, not a number.", lever) from error
    if not whole:
        raise BatchSizeError(f"{what} is {value!r}, not a whole number.", lever)
    return number
