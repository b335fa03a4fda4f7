"""Rules about a request on the slice that it will have."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_raytpu.model.errors import BatchSizeError, SliceShapeError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT
from airflow_raytpu.model.request import Kind
from airflow_raytpu.placement import catalogue, elastic_rules
from airflow_raytpu.placement.catalogue import Tier
from airflow_raytpu.placement.findings import Finding, error, note, raised, warning
from airflow_raytpu.placement.groups import check_fits, check_whole
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.plan import whole_number
from airflow_raytpu.placement.topology import TpuSlice

_ORDERED_SLICES = 10
_PLACED = (Kind.TRAIN, Kind.INFERENCE, Kind.JOB)
"""What is placed by this package; an application places its replicas by itself, and may ask Ray for a slice."""


def check(intent: Intent, own: TpuSlice, cluster: TpuSlice | None) -> Iterator[Finding]:
    """The findings of every rule of this file.

    :param own: the slice that it runs on.
    :param cluster: all slices of the cluster it runs on, where they are known.
    """
    yield from _fits_cluster(intent, own, cluster)
    yield from _unknown_to_ray(intent, own)
    yield from _batches(intent, own)
    yield from _replica(intent, own)
    yield from _second_cluster(intent, own)
    yield from _cluster_name(intent, own)
    yield from _tier(own)
    yield from _shared_pod_type(intent, own)
    yield from _slice_order(own)


def _fits_cluster(intent: Intent, own: TpuSlice, cluster: TpuSlice | None) -> Iterator[Finding]:
    try:
        if cluster is not None:
            check_fits(own, cluster)
        elif intent.cluster is None:
            check_whole(own)
    except SliceShapeError as found:
        yield raised("RT118", found)


def _unknown_to_ray(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    """What is placed here takes its hosts one by one, so Ray's own idea of the shape does not touch them."""
    if intent.kind in _PLACED:
        return
    shape, say = own.shape, warning if intent.kind.is_job else note
    if not shape.ray_knows:
        yield say(
            "RT112",
            f"Ray 2.60 does not know {own.accelerator} {own.topology}: what asks Ray for such a slice is refused.",
            f"Training and inference can use it. For a program of its own: {shape.workaround}",
        )
    elif own.hosts > 1 and shape.ray_chips_per_host > own.chips_per_host:
        yield say(
            "RT116",
            f"Ray takes {own.accelerator} {own.topology} on {own.machine_type} for 1 host of {own.chips} chips.",
            f"Training and inference can use it. For a program of its own: {shape.workaround}",
        )


def _batches(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    for name, value in intent.batches.items():
        try:
            size = whole_number(value, name)
        except BatchSizeError:
            continue  # said by the rules that need no slice
        try:
            elastic_rules.check_batch(intent, own, size, name)
        except BatchSizeError as found:
            yield raised("RT123", found)


def _replica(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    spans = intent.serving.model_chips if intent.serving else None
    if intent.serving is None or spans is None or intent.serving.model_topology:
        return
    if spans > own.chips_per_host:
        yield error(
            "RT129",
            f"One replica's model spans {spans} chips, more than the {own.chips_per_host} of a host, and states no "
            "topology: Ray would put its workers on several slices.",
            f'State the topology, such as "{own.topology}".',
            SliceShapeError,
        )


def _second_cluster(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    if intent.serving is not None and intent.serving.second_cluster:
        yield warning(
            "RT128",
            f"A new version comes up on a second whole cluster: {own.total_chips} more chips while both run.",
            "Have them, or upgrade in place (upgradeStrategy None).",
        )


def _cluster_name(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    name = intent.cluster
    if name is not None and own.hosts > 1 and len(name) > CLUSTER_NAME_LIMIT:
        yield error(
            "RT121",
            f"The cluster name {name} has {len(name)} characters: too many for hosts to find one another.",
            f"Use at most {CLUSTER_NAME_LIMIT}.",
        )


def _tier(own: TpuSlice) -> Iterator[Finding]:
    if own.shape.tier is Tier.TOOLING_ONLY:
        yield warning(
            "RT115",
            f"No document of Google's names {own.accelerator} {own.topology}; only its tools make it.",
            "Ask for quota before you count on it, or take a documented shape.",
        )


def _shared_pod_type(intent: Intent, own: TpuSlice) -> Iterator[Finding]:
    sharers = catalogue.pod_type_sharers(own.shape)
    if sharers and intent.kind not in _PLACED:
        yield note(
            "RT117",
            f"{own.topology} and {', '.join(row.topology for row in sharers)} share the pod type {own.shape.pod_type}, "
            "by which Ray picks slices.",
            "Keep them in clusters of their own.",
        )


def _slice_order(own: TpuSlice) -> Iterator[Finding]:
    if own.num_slices > _ORDERED_SLICES:
        yield note(
            "RT119",
            f"Ray sorts slices by name as text, so that of {own.num_slices} slices number 10 comes before number 2.",
            "Take a slice's number from the mesh, not from its name.",
        )
