"""Whether nodes for a slice are there. Node pools are no objects of Kubernetes: one scaled to zero cannot be seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from airflow_raytpu.backends.kuberay import nodes
from airflow_raytpu.backends.kuberay.resources import NODES
from airflow_raytpu.doctor.findings import Found, error, many, ok, unseen, warning
from airflow_raytpu.doctor.needs import Need
from airflow_raytpu.doctor.visit import Visit
from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.topology import TpuSlice

Node = Mapping[str, Any]

_CHECK = "nodes"
_CHIPS = "google.com/tpu"
_POOL = "cloud.google.com/gke-nodepool"
_UNSEEN = "A pool that is scaled to zero cannot be seen from here: with autoscaling, all may be well."


async def pools(visit: Visit) -> AsyncIterator[Found]:
    if not await visit.may(Need("list", NODES)):
        yield unseen(_CHECK, "TPU nodes", "list nodes")
        return
    if visit.tpu_slice is None:
        yield _all(await visit.api.nodes(nodes.ACCELERATOR))
        return
    wanted = visit.tpu_slice.shape.node_selector | nodes.selector(visit.options, visit.tpu_slice)
    found = await visit.api.nodes(",".join(f"{label}={value}" for label, value in wanted.items()))
    if found:
        for each in _judged(found, visit.tpu_slice):
            yield each
        return
    near = await visit.api.nodes(f"{nodes.ACCELERATOR}={visit.tpu_slice.shape.generation.gke_accelerator}")
    yield _none(visit.tpu_slice, visit.options, wanted, near)


def _all(found: Sequence[Node]) -> Found:
    if not found:
        return warning(_CHECK, f"There is no TPU node. {_UNSEEN}", "Name a shape, with --slice, to be told a command.")
    shapes = Counter(_shape(node) for node in found)
    return ok(_CHECK, ", ".join(f"{count} of {shape}" for shape, count in sorted(shapes.items())))


def _shape(node: Node) -> str:
    labels = node["metadata"].get("labels") or {}
    accelerator = labels.get(nodes.ACCELERATOR, "?")
    name = next(
        (each.name for each in catalogue.GENERATIONS.values() if each.gke_accelerator == accelerator), accelerator
    )
    return f"{name} {labels.get(nodes.TOPOLOGY, '?')}"


def _judged(found: Sequence[Node], tpu_slice: TpuSlice) -> Iterator[Found]:
    wrong = {node["metadata"]["name"]: _chips(node) for node in found if _chips(node) != tpu_slice.chips_per_host}
    if wrong:
        name, chips = next(iter(wrong.items()))
        yield error(
            _CHECK,
            f"{len(wrong)} of {len(found)} nodes of {tpu_slice.accelerator} {tpu_slice.topology} "
            f"{'does' if len(wrong) == 1 else 'do'} not offer "
            f"{tpu_slice.chips_per_host} {_CHIPS}: {name} has {chips}.",
            "Its device plugin does not run, or the pool is of another machine; see the node's pods.",
            f"kubectl describe node {name}",
        )
    by_pool = defaultdict(list)
    for node in found:
        by_pool[(node["metadata"].get("labels") or {}).get(_POOL, "?")].append(node)
    ready = {pool: sum(map(_ready, members)) for pool, members in sorted(by_pool.items())}
    whole = sum(count // tpu_slice.hosts for count in ready.values())
    if whole >= tpu_slice.num_slices:
        yield ok(
            _CHECK,
            f"{_slices(whole, tpu_slice)} in {many(len(ready), 'node pool')}, "
            f"{many(sum(ready.values()), 'node')} ready",
        )
        return
    shown = ", ".join(f"{pool} has {count} of {tpu_slice.hosts} nodes ready" for pool, count in ready.items())
    yield warning(
        _CHECK,
        f"{_slices(whole, tpu_slice)} of the {tpu_slice.num_slices} wanted: {shown}. {_UNSEEN}",
        "GKE makes a multi-host pool anew as a whole; see its events.",
    )


def _slices(count: int, tpu_slice: TpuSlice) -> str:
    return f"{many(count, 'whole slice')} of {tpu_slice.accelerator} {tpu_slice.topology}"


def _chips(node: Node) -> int:
    return int(((node.get("status") or {}).get("allocatable") or {}).get(_CHIPS, 0))


def _ready(node: Node) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    stands = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return stands and not (node.get("spec") or {}).get("unschedulable")


def _none(tpu_slice: TpuSlice, options: KubeRayOptions, wanted: Mapping[str, str], near: Sequence[Node]) -> Found:
    others = Counter(_shape(node) for node in near)
    seen = (
        f" There are {', '.join(f'{count} of {shape}' for shape, count in sorted(others.items()))}." if others else ""
    )
    labels = ", ".join(f"{label.rpartition('/')[2]}={value}" for label, value in wanted.items())
    return warning(
        _CHECK,
        f"No node has {labels}.{seen} {_UNSEEN}",
        "Make a pool, one for each slice; its nodes are the slice's hosts.",
        command(tpu_slice, options),
    )


def command(tpu_slice: TpuSlice, options: KubeRayOptions) -> str:
    """``gcloud`` that makes one node pool for one slice. A single host must not state its topology."""
    name = f"tpu-{tpu_slice.accelerator}-{tpu_slice.topology}"
    flags = ["--cluster=CLUSTER", "--location=LOCATION", "--node-locations=ZONE"]
    flags.append(f"--machine-type={tpu_slice.shape.machine_type}")
    if tpu_slice.shape.multi_host:
        # Ironwood takes its topology from a workload policy instead.
        ironwood = tpu_slice.accelerator == "tpu7x"
        flags.append("--placement-policy=POLICY" if ironwood else f"--tpu-topology={tpu_slice.topology}")
    flags += [*_provisioning(tpu_slice, options), "--workload-metadata=GKE_METADATA"]
    return " \\\n    ".join([f"gcloud container node-pools create {name}", *flags])


def _provisioning(tpu_slice: TpuSlice, options: KubeRayOptions) -> list[str]:
    scaled = ["--num-nodes=0", "--enable-autoscaling", "--min-nodes=0", f"--max-nodes={tpu_slice.hosts}"]
    match options.provisioning:
        case Provisioning.SPOT:
            return ["--spot", f"--num-nodes={tpu_slice.hosts}"]
        case Provisioning.FLEX_START:
            return ["--flex-start", "--reservation-affinity=none", "--no-enable-autorepair", *scaled]
        case Provisioning.QUEUED:
            queued = ["--enable-queued-provisioning", "--flex-start"]
            return [*queued, "--reservation-affinity=none", "--no-enable-autorepair", *scaled]
        case Provisioning.RESERVATION:
            held = f"--reservation={options.reservation}"
            return ["--reservation-affinity=specific", held, f"--num-nodes={tpu_slice.hosts}"]
    return [f"--num-nodes={tpu_slice.hosts}"]
