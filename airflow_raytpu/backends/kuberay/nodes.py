"""On which nodes a TPU worker may land: GKE's labels and taints for each way to come by nodes. Pure.

Read in 2026-11 on GKE's pages on TPUs, spot VMs, reservations, flex-start, queued provisioning and ComputeClasses.
"""

from __future__ import annotations

from typing import Any

from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.topology import TpuSlice

GKE = "cloud.google.com/"
ACCELERATOR = f"{GKE}gke-tpu-accelerator"
TOPOLOGY = f"{GKE}gke-tpu-topology"
SPOT = f"{GKE}gke-spot"
FLEX_START = f"{GKE}gke-flex-start"
RUN_LIMIT = f"{GKE}gke-max-run-duration-seconds"
QUEUED = f"{GKE}gke-queued"
RESERVATION = f"{GKE}reservation-"
COMPUTE_CLASS = f"{GKE}compute-class"
MACHINE_TYPE = "node.kubernetes.io/instance-type"


def selector(options: KubeRayOptions, tpu_slice: TpuSlice) -> dict[str, str]:
    """What a TPU worker's node must carry beside the two TPU labels."""
    found = dict(options.node_selector)
    if options.compute_class:
        return found | {COMPUTE_CLASS: options.compute_class}
    found |= _machine(tpu_slice)
    match options.provisioning:
        case Provisioning.SPOT:
            found[SPOT] = "true"
        case Provisioning.FLEX_START:
            found[FLEX_START] = "true"
            if options.run_limit_s is not None:
                found[RUN_LIMIT] = f"{options.run_limit_s:.0f}"
        case Provisioning.RESERVATION:
            found |= _reservation(options)
    return found


def tolerations(options: KubeRayOptions) -> list[dict[str, Any]]:
    """The taints that a TPU worker bears; that of TPU nodes GKE adds by itself."""
    taint = {Provisioning.SPOT: SPOT, Provisioning.FLEX_START: FLEX_START, Provisioning.QUEUED: QUEUED}.get(
        options.provisioning
    )
    own = [{"key": taint, "operator": "Equal", "value": "true", "effect": "NoSchedule"}] if taint else []
    return [*own, *(dict(each) for each in options.tolerations)]


def _machine(tpu_slice: TpuSlice) -> dict[str, str]:
    """The machine, where a larger one has the same two TPU labels and room for this one's pods."""
    shape = tpu_slice.shape
    rows = catalogue.find(tpu_slice.accelerator, tpu_slice.topology)
    if any(row.chips_per_host > shape.chips_per_host for row in rows):
        return {MACHINE_TYPE: shape.machine_type}
    return {}


def _reservation(options: KubeRayOptions) -> dict[str, str]:
    found = {f"{RESERVATION}name": options.reservation, f"{RESERVATION}affinity": "specific"}
    if options.reservation_project:
        found[f"{RESERVATION}project"] = options.reservation_project
    if options.reservation_block:
        found[f"{RESERVATION}blocks"] = options.reservation_block
    return found
