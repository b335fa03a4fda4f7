"""A serving replica that spans a whole slice.

    from airflow_raytpu.runtime import replicas

    def build(model):
        return Model.options(**replicas.options()).bind(model)

Serve makes a replica's placement group itself and takes hosts of any slice for it (Ray 2.60), so the slice is chosen
before and pinned by its name. A slice that comes back under another name needs another rollout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_raytpu.model.errors import RequestError, RolloutError
from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime.slices import Lookout
from airflow_raytpu.runtime.survey import NAME, NODE, WORKER

_POLL_S = 1.0
_GROUP = "SERVE_REPLICA::"
"""How Serve calls the placement group of a replica (2.60)."""

_given: Mapping[str, Any] | None = None


def options() -> dict[str, Any]:
    """Options of the one deployment whose replica has the slice, with all chips of its hosts in a placement group.

    The replica runs on host 0 and holds its chips; ``ray.util.get_current_placement_group()`` in it has one bundle for
    each host, for the actors that it starts there.

    :raises RequestError: the task states no slice for its replica.
    """
    if _given is None:
        raise RequestError(
            "This application has no slice to itself.", "Give RayServeDeployOperator(slice=...) the slice of a replica."
        )
    return dict(_given)


@contextlib.contextmanager
def given(options: Mapping[str, Any] | None) -> Iterator[None]:
    """While the author's builder runs."""
    global _given  # noqa: PLW0603 - the builder has no argument of ours, and runs alone in its process
    before, _given = _given, options
    try:
        yield
    finally:
        _given = before


def choose(plan: SlicePlan, until: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Serve options for a replica on a slice that is whole and free now.

    :param until: when to give up, in seconds since the epoch.
    :raises NoSliceError: none in time.
    """
    lookout, began = Lookout(plan, tell), time.time()
    while True:
        free = next((view.name for view in lookout.look() if view.state == "free"), None)
        if free is not None:
            return pinned(plan, free)
        if time.time() > until:
            raise lookout.too_late(until - began)
        time.sleep(_POLL_S)


def pinned(plan: SlicePlan, name: str) -> dict[str, Any]:
    """Serve options for a replica on the slice *name*. Pure, and JSON."""
    bundles, labels = [dict(each) for each in plan.bundles], [{NAME: name} for _ in plan.bundles]
    if plan.slice.hosts == 1:
        labels = [{NODE: name}]
    else:
        # With the head, so that whoever asks Ray for a slice does not get this one.
        bundles[0][plan.slice.shape.head_resource] = 1
        labels[0][WORKER] = "0"
    return {
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 1, "resources": {"TPU": plan.chips_per_worker}},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "STRICT_SPREAD",
        "placement_group_bundle_label_selector": labels,
    }


def prove(plan: SlicePlan, application: str, chosen: Mapping[str, Any]) -> None:
    """Prove that a replica of *application* has the hosts of the *chosen* slice, each once.

    :raises RolloutError: it has not.
    """
    import ray
    from ray.util.placement_group import placement_group_table

    wanted = chosen["placement_group_bundle_label_selector"][-1]
    label, name = next(iter(wanted.items()))
    mine = {
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and name in {node.get("Labels", {}).get(label), node["NodeID"]}
    }
    for row in placement_group_table().values():
        of_ours = row["state"] == "CREATED" and row["name"].startswith(f"{_GROUP}{application}#")
        if of_ours and sorted(row["bundles_to_node_id"].values()) == sorted(mine):
            return
    raise RolloutError(
        f"No replica of {application} has slice {name} to itself: {plan.slice.describe()}.",
        "Build the deployment with Model.options(**replicas.options()), from airflow_raytpu.runtime import replicas.",
    )
