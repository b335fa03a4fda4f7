"""How the slices of a cluster divide into parts: which hosts lie together, as Ray 2.60 finds out and keeps it.

Worker ids need not follow the torus, so Ray asks libtpu on each host of an idle slice, once, and keeps the answer in
the cluster. The rest of Ray's way to a part is not used: it hands out parts that are held.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_raytpu.placement.catalogue import MULTI_HOST_CHIPS
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import survey

_FIND_OUT_S = 30.0
_NO_LIBTPU = "libtpu is required"

log = logging.getLogger(__name__)

Node = Mapping[str, Any]


def known(slice_plan: SlicePlan, nodes: Sequence[Node]) -> dict[str, dict[str, dict[str, str]]]:
    """What Ray has found out about the slices that the plan's parts are of; nothing for a plan of whole slices."""
    if not slice_plan.slice.part_of:
        return {}
    from ray.experimental.internal_kv import _internal_kv_get
    from ray.util.tpu import _TPU_SUBSLICE_KV_NAMESPACE, _get_subslice_kv_key

    found = {}
    for name in {node["Labels"][survey.NAME] for node in nodes if node["Alive"] and survey.NAME in node["Labels"]}:
        kept = _internal_kv_get(_get_subslice_kv_key(name), namespace=_TPU_SUBSLICE_KV_NAMESPACE)
        if kept:
            found[name] = json.loads(kept)
    return found


def find_out(slice_plan: SlicePlan) -> bool:
    """Have Ray find out how one more idle slice divides; whether there was one. It is held for a few seconds."""
    import ray
    from ray._private.state import available_resources_per_node
    from ray.util.tpu import _discover_and_persist_subslices

    shape = slice_plan.slice.whole
    nodes = ray.nodes()
    wholes = survey.survey(_whole(slice_plan), nodes, available_resources_per_node())
    done = known(slice_plan, nodes)
    name = next((view.name for view in wholes if view.state == "free" and view.name not in done), None)
    if name is None:
        return False
    try:
        _discover_and_persist_subslices(
            shape.topology, slice_plan.accelerator_version, MULTI_HOST_CHIPS, _FIND_OUT_S, target_slice_name=name
        )
    except (TimeoutError, RuntimeError) as error:
        if _NO_LIBTPU not in str(error):
            log.warning("slice %s could not be divided, for somebody took it or a host went: %s", name, error)
            return False
        _keep(name, in_order(shape.topology))
        log.info("no host of slice %s has libtpu, so it is no TPU and its parts are in the order of its hosts", name)
    return True


def in_order(topology: str) -> dict[str, dict[str, str]]:
    """The parts of a slice whose worker ids follow the torus, as they do where it is simulated."""
    from ray._private.accelerators.tpu import _build_subslice_labels, _get_worker_dims_for_topology

    hosts = 1
    for side in _get_worker_dims_for_topology(topology):
        hosts *= side
    return {str(worker): _build_subslice_labels(worker, topology) for worker in range(hosts)}


def _keep(name: str, parts: Mapping[str, Mapping[str, str]]) -> None:
    from ray.experimental.internal_kv import _internal_kv_put
    from ray.util.tpu import _TPU_SUBSLICE_KV_NAMESPACE, _get_subslice_kv_key

    _internal_kv_put(_get_subslice_kv_key(name), json.dumps(parts).encode(), namespace=_TPU_SUBSLICE_KV_NAMESPACE)


def _whole(slice_plan: SlicePlan) -> SlicePlan:
    return plan(TpuSlice(slice_plan.slice.accelerator, slice_plan.slice.part_of, chips_per_host=MULTI_HOST_CHIPS))
