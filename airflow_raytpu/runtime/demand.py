"""Asking a cluster for slices that are not up, in the words that an autoscaler understands, and Ray's groups for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

from airflow_raytpu.placement.plan import SlicePlan
from airflow_raytpu.runtime.survey import NAME, NODE, POD, TOPOLOGY, SliceView


class Demand:
    """Asks for slices beyond those that are present while too few are free."""

    def __init__(self, plan: SlicePlan) -> None:
        self._plan = plan
        self._held = ExitStack()
        self._asked: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def meet(self, views: Sequence[SliceView], due: int) -> list[SliceView]:
        """Those that are free, *due* of them at most; for what they lack, more are asked for."""
        free = [view for view in views if view.state == "free"]
        lacks = due - len(free)
        if lacks <= 0:
            self.drop()
        elif any(_is_placed(group) for group in self._asked):
            # What has come up is held by this very demand, and looks busy until the next look.
            self.drop()
        elif len(self._asked) != lacks:
            self.drop()
            self._asked = [self._ask() for _ in range(lacks)]
        return free[:due]

    def drop(self) -> None:
        """Ask for nothing more."""
        self._held.close()
        self._asked = []

    def _ask(self) -> Any:
        import ray

        plan, shape = self._plan, self._plan.slice.whole
        single = not shape.multi_host
        key = NODE if single else NAME
        # Of other shapes too: equal chips make an equal head.
        alike = [node["Labels"] for node in ray.nodes() if node.get("Labels", {}).get(POD) == plan.pod_type]
        present = sorted({labels[key] for labels in alike if key in labels})
        # As Ray itself asks for a slice: by its head, and a single host by what it has.
        bundle = plan.bundle if single else {shape.head_resource: 1}
        # Not by worker id: an autoscaler knows none before the host is there, and would add nothing (Ray 2.60). That it
        # is the first host follows from the head.
        labels = {POD: plan.pod_type, TOPOLOGY: shape.topology} if single else {POD: plan.pod_type}
        if present:
            # No space after the comma: Ray takes it for a part of the name (2.60).
            labels[key] = f"!in({','.join(present)})"
        return group([bundle], [labels], self._held)


def group(bundles: list[dict[str, int]], labels: list[dict[str, str]], held: ExitStack) -> Any:
    """A placement group with one bundle a host, removed when *held* closes."""
    from ray.util.placement_group import placement_group, remove_placement_group

    made = placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=labels)
    held.callback(remove_placement_group, made)
    return made


def _is_placed(made: Any) -> bool:
    from ray.util.placement_group import placement_group_table

    return bool(placement_group_table(made)["state"] == "CREATED")
