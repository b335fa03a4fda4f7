"""Rules about a request that hold on any slice: place, names, time, data, options, Kueue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_raytpu.model import addresses
from airflow_raytpu.model.errors import BatchSizeError, DeadlineError, PathError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT
from airflow_raytpu.model.request import Kind
from airflow_raytpu.placement.findings import Finding, error, note, raised, span, warning
from airflow_raytpu.placement.intent import Intent, Provisioning
from airflow_raytpu.placement.plan import whole_number

RAGGED = ("pad", "drop", "raise")
RESUME = ("auto", "never")
ON_NAN = ("stop", "roll_back", "ignore")

SPOT_NOTICE_S = 30.0
"""Seconds between a spot VM's notice and its end (GKE)."""

_FLEX_RUN_S = (600.0, 7 * 86400.0)
_TTL_S = 60.0
_KUEUE_GROUPS = 17
_CLUSTER_NAME = 53
_GROUP_NAME = 63 - len("-00-00")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)


def check(intent: Intent) -> Iterator[Finding]:
    """The findings of every rule of this file."""
    for rule in (
        _nowhere,
        _addresses,
        _ragged,
        _resume,
        _on_nan,
        _jax_at_top,
        _json,
        _batches,
        _serving,
        _names,
        _cut_name,
        _deadlines,
        _ttl,
        _spot,
        _run_limit,
        _kueue,
    ):
        yield from rule(intent)


def _nowhere(intent: Intent) -> Iterator[Finding]:
    if intent.placed:
        return
    if intent.kind is Kind.SERVE:
        yield error(
            "RT120",
            "A serving application needs a cluster that outlives its task.",
            'Pass cluster=, a RayTpuClusterOperator task, or slice="v6e:2x2" and name= for a service of its own.',
        )
    else:
        yield error(
            "RT120",
            "Neither cluster nor slice is given, so there is nothing to run on.",
            'Pass cluster=, a RayTpuClusterOperator task, or slice="v6e:4x4" for a cluster of its own.',
        )


def _names(intent: Intent) -> Iterator[Finding]:
    name = intent.cluster
    if name is not None and (not _DNS_1035.fullmatch(name) or len(name) > _CLUSTER_NAME):
        yield error(
            "RT121",
            f"{name!r} cannot be a cluster's name.",
            f"Use at most {_CLUSTER_NAME} small letters, digits and hyphens, a letter first and no hyphen last.",
        )
    for group in intent.supply.groups:
        if not _DNS_1123.fullmatch(group) or len(group) > _GROUP_NAME:
            yield error(
                "RT121",
                f"{group!r} cannot be a worker group's name.",
                f"Use at most {_GROUP_NAME} small letters, digits and hyphens, no hyphen first or last.",
            )


def _cut_name(intent: Intent) -> Iterator[Finding]:
    limit = JOB_NAME_LIMIT if intent.kind.is_job else CLUSTER_NAME_LIMIT
    room = limit - len("-00000000")
    if len(intent.dag_id) + 1 + len(intent.task_id) > room:
        yield note(
            "RT134", f"Of DAG and task id, the remote name shows the first {room} characters; its hash keeps it unique."
        )


def _deadlines(intent: Intent) -> Iterator[Finding]:
    limits = intent.deadlines
    total = limits.total.total_seconds()
    slice_wait, start = limits.slice_wait.total_seconds(), limits.start.total_seconds()
    if intent.execution_timeout_s is not None and intent.execution_timeout_s < total:
        total = intent.execution_timeout_s
        if slice_wait > total:
            yield warning(
                "RT113",
                f"execution_timeout ({span(total)}) ends the task before slice_wait ({span(slice_wait)}) can.",
                "Raise execution_timeout, or lower slice_wait.",
            )
            return
    if slice_wait + start > total:
        yield warning(
            "RT113",
            f"A slice that comes late in slice_wait ({span(slice_wait)}) leaves less than start ({span(start)}) before "
            f"total ({span(total)}).",
            f"Raise total above {span(slice_wait + start)}.",
        )
    rollout = intent.serving.deadline_s if intent.serving else None
    if rollout is not None and rollout > total:
        yield warning(
            "RT113",
            f"The rollout may take {span(rollout)}, but total ends it after {span(total)}.",
            "Raise total, or lower Rollout.deadline.",
        )


def _ttl(intent: Intent) -> Iterator[Finding]:
    if intent.ttl_s <= 0:
        yield error(
            "RT133",
            f"ttl is {span(intent.ttl_s)}, so the cluster is given back at once.",
            "Give it minutes.",
            DeadlineError,
        )
    elif intent.ttl_s < _TTL_S:
        yield warning(
            "RT133",
            f"ttl is {span(intent.ttl_s)}: a triggerer that restarts takes longer, and loses the cluster.",
            f"Raise it to {span(_TTL_S)} or more.",
        )


def _spot(intent: Intent) -> Iterator[Finding]:
    supply = intent.supply
    spot = supply.provisioning is Provisioning.SPOT
    if supply.save_s is not None:
        grace = supply.grace_s if supply.grace_s is not None else SPOT_NOTICE_S
        notice = min(grace, SPOT_NOTICE_S) if spot else grace
        if supply.save_s > notice:
            yield warning(
                "RT114",
                f"{'Spot gives' if spot else 'A pod is given'} {span(notice)}; a save takes {span(supply.save_s)}.",
                "Save more often or drop spot." if spot else "Raise the grace period, up to 60 min for maintenance.",
            )
    elif spot and supply.grace_s is not None and supply.grace_s > SPOT_NOTICE_S:
        yield warning(
            "RT114",
            f"A grace of {span(supply.grace_s)} is not given on spot: {span(SPOT_NOTICE_S)} is all there is.",
            "Save more often or drop spot.",
        )


def _run_limit(intent: Intent) -> Iterator[Finding]:
    limit, total = intent.supply.run_limit_s, intent.deadlines.total.total_seconds()
    if limit is None:
        return
    least, most = _FLEX_RUN_S
    if not least <= limit <= most:
        yield error(
            "RT131",
            f"The nodes' run limit is {span(limit)}.",
            f"GKE takes {span(least)} to {span(most)}.",
            DeadlineError,
        )
    elif total > limit:
        yield warning(
            "RT131",
            f"The nodes are taken away after {span(limit)}, before total ({span(total)}).",
            "Lower total, or see that it goes on from its checkpoints.",
        )


def _addresses(intent: Intent) -> Iterator[Finding]:
    for address in intent.addresses.values():
        try:
            addresses.normalise(address)
        except PathError as found:
            yield raised("RT122", found)


def _ragged(intent: Intent) -> Iterator[Finding]:
    match intent.ragged:
        case None | "pad":
            return
        case "drop":
            yield warning(
                "RT124",
                "ragged='drop' leaves the rows of a last batch that is not full out of the output.",
                'They are counted in rows_dropped; "pad" keeps them.',
            )
        case "raise":
            yield note("RT124", "ragged='raise' refuses an input that does not fill its last batch.")
        case other:
            yield error("RT124", f"ragged is {other!r}.", f"Use one of {', '.join(RAGGED)}.")


def _resume(intent: Intent) -> Iterator[Finding]:
    if intent.resume is not None and intent.resume not in RESUME:
        yield error("RT125", f"resume is {intent.resume!r}.", 'Use "auto" or "never".')


def _on_nan(intent: Intent) -> Iterator[Finding]:
    if intent.on_nan is not None and intent.on_nan not in ON_NAN:
        yield error("RT136", f"on_nan is {intent.on_nan!r}.", f"Use one of {', '.join(ON_NAN)}.")
    if intent.on_nan == "roll_back" and intent.failures == 0:
        yield error(
            "RT136",
            "on_nan='roll_back' begins again at the cost of RetryBudget.failures, which is 0.",
            "Give retry_budget=RetryBudget(failures=1), or more.",
        )


def _json(intent: Intent) -> Iterator[Finding]:
    if intent.not_json:
        yield error(
            "RT138",
            f"{intent.not_json}, and goes to the cluster as JSON, which has no such thing.",
            "Pass plain numbers, text, lists and dicts; make the rest of them inside the loop.",
        )


def _jax_at_top(intent: Intent) -> Iterator[Finding]:
    if intent.jax_at_top:
        yield warning(
            "RT135",
            f"{intent.jax_at_top} imports jax as soon as it is imported itself: a DAG file that does so loads JAX at "
            "each parse, and a process that touches a TPU by it keeps the chips from the workers.",
            "Import jax inside the loop.",
        )


def _kueue(intent: Intent) -> Iterator[Finding]:
    supply = intent.supply
    if supply.queue is None:
        return
    if not _DNS_1123.fullmatch(supply.queue):
        yield error("RT130", f"{supply.queue!r} is no name of a Kueue queue.", "Use small letters, digits and hyphens.")
    if "head" in supply.groups:
        yield error("RT130", "Kueue takes no worker group called head.", "Call it something else.")
    if len(supply.groups) + 1 > _KUEUE_GROUPS:
        yield error(
            "RT130",
            f"There are {len(supply.groups) + 1} worker groups; Kueue takes {_KUEUE_GROUPS}.",
            "Put more replicas into fewer groups.",
        )
    if supply.autoscaling and not supply.elastic:
        yield error(
            "RT130",
            "Kueue takes no autoscaling cluster without its elastic-job annotation.",
            'Set kueue.x-k8s.io/elastic-job: "true", or do not autoscale.',
        )


def _batches(intent: Intent) -> Iterator[Finding]:
    for name, value in intent.batches.items():
        try:
            whole_number(value, name)
        except BatchSizeError as found:
            yield raised("RT123", found)


def _serving(intent: Intent) -> Iterator[Finding]:
    if intent.serving is None:
        return
    route = intent.serving.route_prefix
    if route is not None and not route.startswith("/"):
        yield error("RT126", f"route_prefix is {route!r}.", f'Begin it with a slash: "/{route}".')
    if not intent.serving.smoke:
        yield warning(
            "RT127",
            "No smoke request is stated, so a version that answers nothing but errors counts as healthy.",
            'Give rollout=Rollout(smoke=[{"json": ..., "status": 200}]).',
        )
