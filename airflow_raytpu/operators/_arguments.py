"""Arguments as authors write them: what is literal is checked at once, what is templated when it is rendered."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk import BaseOperator, XComArg

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import RequestError, SliceShapeError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.placement.intent import Supply
from airflow_raytpu.placement.topology import TpuSlice, widest
from airflow_raytpu.storage import objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a request is to run, as rendered.

    :param slice: canonical text, empty for the cluster's own.
    :param cluster: name of the shared cluster, ``None`` for one of its own.
    :param facts: what that cluster's task returned.
    """

    slice: str
    cluster: str | None = None
    facts: Mapping[str, Any] | None = None


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


def supply(kuberay: Mapping[str, Any]) -> Supply:
    """How a cluster is come by, as far as the options of the task say it literally.

    :raises RequestError: they cannot be, or contradict one another.
    """
    options = KubeRayOptions.from_dict({name: value for name, value in kuberay.items() if _is_plain(value)})
    return Supply(
        provisioning=options.provisioning,
        grace_s=options.grace_s,
        run_limit_s=options.run_limit_s,
        queue=options.queue or None,
        groups=tuple(group.name for group in options.cpu_groups),
        autoscaling=options.autoscaling,
        elastic=options.elastic,
    )


def _is_plain(value: Any) -> bool:
    """No template anywhere in *value*."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else is_literal(value)


def not_json(value: Any, where: str) -> str:
    """The first part of *value* that JSON cannot hold, such as ``train_loop_config['model'] is a Model``; else empty.

    What Airflow renders or resolves is looked at when that is done.
    """
    if isinstance(value, Mapping):
        parts = [(f"{where}[{key!r}]", each) for key, each in value.items()]
        wrong = next((key for key in value if not isinstance(key, str | int | float | bool | None)), None)
        if wrong is not None:
            return f"{where} has the key {wrong!r}, a {type(wrong).__name__}"
    elif isinstance(value, list | tuple):
        parts = [(f"{where}[{index}]", each) for index, each in enumerate(value)]
    else:
        if value is None or not is_literal(value) or isinstance(value, str | int):
            return ""
        if isinstance(value, float):
            return "" if math.isfinite(value) else f"{where} is {value}"
        return f"{where} is a {type(value).__name__}"
    return next(filter(None, (not_json(each, path) for path, each in parts)), "")


def literals(**values: Any) -> dict[str, Any]:
    """Those of *values* that are stated and need no run to be known."""
    return {name: value for name, value in values.items() if value is not None and is_literal(value)}


def place(tpu_slice: Any, cluster: Any, *, own: bool = True) -> dict[str, Any]:
    """What is known of where a job runs, as fields of an :class:`Intent`; before and after it is rendered.

    :param own: it may run on a cluster of its own.
    """
    known = literals(slice=tpu_slice or None, cluster_slice=slice_of(cluster) or None)
    named = isinstance(cluster, str) and is_literal(cluster)
    if cluster is not None and not named and "cluster_slice" not in known and "/" in str(known.get("slice", "")):
        # A part, and of which cluster's slice is known only when the task runs.
        del known["slice"]
    placed = cluster is not None or (own and tpu_slice is not None)
    return {
        **known,
        **({"cluster": cluster} if named else {}),
        "placed": placed,
        "open": ("slice",) if placed and not known else (),
    }


def slice_of(cluster: Any) -> Any:
    """The slice of a cluster, as its task states or returned it; ``None`` where that is not known."""
    if isinstance(cluster, BaseOperator):
        return getattr(cluster, "slice", None)
    if isinstance(cluster, XComArg):
        return next((slice_of(task) for task, _ in cluster.iter_references()), None)
    return cluster.get("slice") if isinstance(cluster, Mapping) else None


def target(tpu_slice: str | None, cluster: Any) -> Target:
    """Where a job runs, from the rendered arguments.

    :raises RequestError: the cluster's task returned no cluster.
    """
    canonical = str(TpuSlice.parse(tpu_slice)) if tpu_slice else ""
    if cluster is None:
        return Target(slice=canonical)
    if isinstance(cluster, str) and is_name(cluster):
        return Target(slice=canonical, cluster=cluster)
    if isinstance(cluster, Mapping) and cluster.get("cluster"):
        return Target(slice=canonical or cluster.get("slice", ""), cluster=cluster["cluster"], facts=cluster)
    raise no_cluster(cluster)


def widened(found: Target, elastic: Elastic | None) -> Target:
    """*found* with as many slices as an elastic task may have.

    :raises SliceShapeError: no job spans several of them.
    """
    if elastic is None or not found.slice:
        return found
    return replace(found, slice=str(widest(TpuSlice.parse(found.slice), elastic)))


def is_name(value: Any) -> bool:
    """Whether a rendered *value* names something; a template whose value is missing renders to nothing or ``None``."""
    return isinstance(value, str) and value.strip() not in ("", "None")


def no_cluster(value: Any) -> RequestError:
    return RequestError(
        f"cluster is {value!r}, which is no cluster.", "Pass the RayTpuClusterOperator task, or a cluster's name."
    )


def uri(value: Any, what: str) -> str:
    """A rendered address in its one form.

    :raises PathError: it is no storage address.
    """
    return objects.normalise(value) if value is not None else _missing(what)


def word(value: Any, what: str) -> str:
    """One word of a command line or an environment.

    :raises RequestError: it is neither text nor a number, or no process can be given it.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RequestError(f"{what} holds {value!r}, a {type(value).__name__}.", "Give text or numbers.")
    if "\0" in str(value):
        raise RequestError(f"{what} holds {value!r}, with a NUL in it.", "No process can be given that.")
    return str(value)


def words(values: Collection[Any], what: str) -> list[str]:
    """A rendered command line.

    :raises RequestError: it is none.
    """
    refuse_text(values, what)
    return [word(value, what) for value in values]


def refuse_text(values: Collection[Any], what: str) -> None:
    """:raises RequestError: it is one text, where a list of words is due."""
    if isinstance(values, str):
        raise RequestError(f"{what} is one text, {values!r}.", f'Give a list: {what}=["--steps", "10"].')


def dataset(value: Any) -> Any:
    """What an author says of a dataset, in the form that Airflow renders: an address, or a mapping with one.

    :raises RequestError: it is neither, as far as that is known.
    """
    if isinstance(value, Dataset):
        return value.to_dict()
    if isinstance(value, Mapping) and all(_is_plain(each) for name, each in value.items() if name != "uri"):
        Dataset.of(value)
    return value


def address(value: Any) -> Any:
    """Where a dataset lies, of what :func:`dataset` gave."""
    return value.get("uri") if isinstance(value, Mapping) else value


def rendered_dataset(value: Any, what: str) -> Any:
    """A dataset whose address is in its one form.

    :raises RequestError: it is none, or its address is none.
    """
    place = uri(address(value), what)
    return {**Dataset.of(value).to_dict(), "uri": place} if isinstance(value, Mapping) else place


def _missing(what: str) -> str:
    raise RequestError(
        f"{what} is None: the task it comes from returned nothing.", f"See that task's {what} in its XComs."
    )
