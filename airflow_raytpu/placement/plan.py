"""What a slice means for whoever runs on it: workers, devices, resources. Nobody else counts hosts."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_raytpu.model.errors import BatchSizeError
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
    def mesh(self) -> tuple[int, ...]:
        """Mesh shape hint for data parallelism: a slice axis where there are several, then the chips."""
        if self.slice.num_slices > 1:
            return (self.slice.num_slices, self.slice.chips)
        return (self.slice.chips,)

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


def plan(tpu_slice: TpuSlice) -> SlicePlan:
    """The plan for *tpu_slice*."""
    generation = tpu_slice.shape.generation
    return SlicePlan(
        slice=tpu_slice,
        workers=tpu_slice.total_hosts,
        chips_per_worker=tpu_slice.chips_per_host,
        accelerator_type=generation.ray_type,
        accelerator_version=generation.ray_version,
        pod_type=tpu_slice.shape.pod_type,
    )
