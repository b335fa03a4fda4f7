"""What one task would ask for, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg

from airflow_raytpu.explain.manifests import manifest_of
from airflow_raytpu.explain.rendering import RUN, Renderer
from airflow_raytpu.hooks.raytpu import setting
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT, Identity
from airflow_raytpu.operators._arguments import address, is_literal
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement import elastic_rules
from airflow_raytpu.placement.findings import Finding, Level
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.preflight import CODES, preflight
from airflow_raytpu.placement.topology import TpuSlice, widest

_HASH = len("-00000000")


def ask(task: RequestOperator, renderer: Renderer, copies: int | None = None) -> dict[str, Any]:
    """JSON values only.

    :param copies: how many the task is mapped to; what is said is of the first.
    """
    rendered: Any = renderer.task(task)
    intent, limits = rendered.intent(), rendered.limits(0)
    findings = preflight(intent)
    made, refused = _manifest(rendered, intent, findings)
    findings += refused
    return {
        "task": task.task_id,
        "operator": task.task_type,
        "copies": copies,
        "kind": intent.kind.value,
        "slice": _plan(intent),
        "elastic": elastic.to_list() if (elastic := elastic_rules.of(intent)) else None,
        "name": made["metadata"]["name"] if made else _name(rendered, intent),
        "cluster": _cluster(rendered),
        "code": [code.entry for code in rendered.codes()],
        "deadlines": {name: getattr(limits, f"{name}_s") for name in ("slice_wait", "start", "stall", "total")},
        "ttl": intent.ttl_s,
        "storage": _storage(rendered, intent),
        "addresses": {name: address for name, address in _addresses(rendered).items() if name != "storage_path"},
        "findings": [finding.to_dict() for finding in findings],
        "manifest": made,
        "passed": len(CODES) - len({finding.code for finding in findings}),
    }


def has_errors(asked: Mapping[str, Any]) -> bool:
    return any(finding["level"] == Level.ERROR.value for finding in asked["findings"])


def _manifest(
    task: RequestOperator, intent: Intent, findings: Sequence[Finding]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The Kubernetes object, or why there can be none."""
    if any(finding.level is Level.ERROR for finding in findings):
        return None, []
    try:
        return manifest_of(task, intent, _name(task, intent)), []
    except RequestError as error:
        return None, [Finding(level=Level.ERROR, code=error.code, cause=error.cause, lever=error.lever)]


def _plan(intent: Intent) -> dict[str, Any] | None:
    """``None`` where the slice is unknown or wrong; the findings say which."""
    text = intent.slice or intent.cluster_slice
    if text is None or any(finding.code in {"RT110", "RT111"} for finding in preflight(intent)):
        return None
    return plan(widest(TpuSlice.parse(text), elastic_rules.of(intent))).to_dict()


def _name(task: RequestOperator, intent: Intent) -> str:
    """The remote name, with the run in place of the hash that it is part of; a shared cluster has it in every run."""
    own = Identity(deployment=setting("deployment"), dag_id=intent.dag_id, task_id=intent.task_id, run_id=RUN)
    try:
        identity = task.identity(own)
    except RequestError:
        identity = own  # that it has no name, the manifest's finding says, and the run
    limit = JOB_NAME_LIMIT if intent.kind.is_job else CLUSTER_NAME_LIMIT
    if identity is not own:
        return identity.remote_name(limit)
    return f"{identity.remote_name(limit)[:-_HASH]}-{RUN}"


def _cluster(task: Any) -> str:
    cluster = getattr(task, "cluster", None)
    if isinstance(cluster, Mapping):
        return str(cluster.get("cluster"))
    if isinstance(cluster, XComArg):
        return f"of task {next(task.task_id for task, _ in cluster.iter_references())}"
    return "its own" if cluster is None else str(cluster)


def _storage(task: Any, intent: Intent) -> str:
    """Folder of the task, the same for every attempt."""
    root = task.storage_path.rstrip("/") if isinstance(task.storage_path, str) else f"<{task.conn_id}>"
    identity = Identity(deployment="", dag_id=intent.dag_id, task_id=intent.task_id, run_id="run")
    return f"{root}/{identity.storage_path().removesuffix('run')}{RUN}"


def _addresses(task: Any) -> dict[str, str]:
    stated = {name: getattr(task, name, None) for name in ("model", "input", "output_path")}
    stated.update({name: address(each) for name, each in getattr(task, "datasets", {}).items()})
    return {name.removesuffix("_path"): _shown(value) for name, value in stated.items() if value is not None}


def _shown(value: Any) -> str:
    """An address, or where it comes from."""
    if is_literal(value) or isinstance(value, str):
        return str(value)
    task, key = getattr(value, "operator", None), getattr(value, "key", None)
    return f"<{task.task_id}.{key}>" if task is not None else f"<{value}>"
