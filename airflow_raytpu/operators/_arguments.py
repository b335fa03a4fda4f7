"""Arguments as authors write them: what is literal is checked at once, what is templated when it is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from airflow_raytpu.model.errors import BatchSizeError, RequestError, SliceShapeError
from airflow_raytpu.operators._lifecycle import Target
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage import objects


def is_literal(value: Any) -> bool:
    """Whether *value* is what the task will see: no template, and nothing that Airflow resolves."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    return not hasattr(value, "resolve")


def slice_text(value: Any) -> Any:
    """*value* in canonical text, where it is literal.

    :raises SliceShapeError: there is no such shape.
    """
    if isinstance(value, TpuSlice):
        return str(value)
    if isinstance(value, str) and is_literal(value):
        return str(TpuSlice.parse(value))
    if is_literal(value) and not isinstance(value, str):
        raise SliceShapeError(
            f"slice is a {type(value).__name__}, {value!r}.", 'Pass TpuSlice("v6e", "4x4") or the text "v6e:4x4".'
        )
    return value


def literal_slice(tpu_slice: Any, cluster: Any) -> TpuSlice | None:
    """The slice that a task will run on, where that is known before anything is rendered."""
    if tpu_slice is None and isinstance(cluster, XComArg):
        tpu_slice = next((getattr(task, "slice", None) for task, _ in cluster.iter_references()), None)
    return TpuSlice.parse(tpu_slice) if isinstance(tpu_slice, str) and is_literal(tpu_slice) else None


def target(tpu_slice: str | None, cluster: Any) -> Target:
    """Where a job runs, from the rendered arguments.

    :raises RequestError: the cluster's task returned no cluster.
    """
    canonical = str(TpuSlice.parse(tpu_slice)) if tpu_slice else ""
    if cluster is None:
        return Target(slice=canonical)
    if isinstance(cluster, str):
        return Target(slice=canonical, cluster=cluster)
    if isinstance(cluster, Mapping) and cluster.get("cluster"):
        return Target(slice=canonical or cluster.get("slice", ""), cluster=cluster["cluster"], facts=cluster)
    raise RequestError(
        f"cluster is {cluster!r}, which is no cluster.", "Pass the RayTpuClusterOperator task, or a cluster's name."
    )


def check_place(tpu_slice: Any, cluster: Any, *, own: bool = True) -> None:
    """A job says where it runs.

    :param own: it may run on a cluster of its own.
    :raises RequestError: it says nothing.
    """
    if cluster is None and not own:
        raise RequestError(
            "A serving application needs a cluster that outlives its task.",
            "Pass cluster=, a RayTpuClusterOperator task.",
        )
    if cluster is None and tpu_slice is None:
        raise RequestError(
            "Neither cluster nor slice is given, so there is nothing to run on.",
            'Pass cluster=, a RayTpuClusterOperator task, or slice="v6e:4x4" for a cluster of its own.',
        )


def whole_number(value: Any, what: str) -> int:
    """A rendered number: a template gives text unless the DAG renders native objects.

    :raises BatchSizeError: it is no whole number.
    """
    lever = f"Give {what} as rows of one global batch."
    try:
        number = int(value)
        whole = number == float(value)
    except (TypeError, ValueError) as error:
        raise BatchSizeError(f"{what} is {value!r}, not a number.", lever) from error
    if not whole:
        raise BatchSizeError(f"{what} is {value!r}, not a whole number.", lever)
    return number


def check_batch(value: Any, what: str, tpu_slice: TpuSlice | None) -> None:
    """:raises BatchSizeError: a literal global batch does not divide over a known slice."""
    if tpu_slice is not None and value is not None and is_literal(value):
        plan(tpu_slice).check_batch(whole_number(value, what), what)


def uri(value: Any, what: str) -> str:
    """A rendered address in its one form.

    :raises PathError: it is no storage address.
    """
    return objects.normalise(value) if value is not None else _missing(what)


def check_uri(value: Any) -> None:
    """:raises PathError: a literal address has an unknown scheme."""
    if value is not None and is_literal(value):
        objects.normalise(value)


def _missing(what: str) -> str:
    raise RequestError(
        f"{what} is None: the task it comes from returned nothing.", f"See that task's {what} in its XComs."
    )
