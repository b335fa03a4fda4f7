"""A refusal is believed once it has stood for minutes, and a look in between begins it anew."""

from __future__ import annotations

from typing import Any

from airflow_raytpu.backends.kuberay.patience import BELIEVED_S, Patience
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import ForbiddenError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.model.verdict import Phase, judge

REFUSED = ForbiddenError("airflow may not get rayjobs.", "Give it a Role.")


def request(**changes: Any) -> RayRequest:
    limits = Deadlines().since(0.0)
    identity = Identity(deployment="d", dag_id="dag", task_id="task", run_id="run")
    made = {"kind": Kind.TRAIN, "slice": "v6e:4x4", "storage": "file:///s", **changes}
    return RayRequest(identity=identity, limits=limits, **made)


def test_it_is_no_verdict_at_first_and_one_with_its_cause_later() -> None:
    patience, job = Patience(), request()
    for now in (0.0, BELIEVED_S - 1):
        assert judge(patience.meaning(job, REFUSED, now), job.limits, now).phase is Phase.WAITING
    verdict = judge(patience.meaning(job, REFUSED, BELIEVED_S), job.limits, BELIEVED_S)
    assert (verdict.phase, verdict.code, verdict.lever) == (Phase.FAILED, "RT210", REFUSED.lever)
    assert "5 min" in verdict.message
    assert REFUSED.cause in verdict.message
    assert verdict.stop


def test_a_look_begins_it_anew() -> None:
    patience, job = Patience(), request()
    patience.meaning(job, REFUSED, 0.0)
    patience.renew(job)
    assert patience.meaning(job, REFUSED, BELIEVED_S).fault is None
    assert patience.meaning(job, REFUSED, 2 * BELIEVED_S).fault is not None


def test_a_cluster_has_no_job() -> None:
    patience, cluster = Patience(), request(kind=Kind.CLUSTER)
    patience.meaning(cluster, REFUSED, 0.0)
    seen = patience.meaning(cluster, REFUSED, BELIEVED_S)
    assert seen.job is None
    assert judge(seen, cluster.limits, BELIEVED_S).code == "RT210"
