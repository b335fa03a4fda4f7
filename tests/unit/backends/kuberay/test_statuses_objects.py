"""The objects that these tests judge by are such as KubeRay 1.7 has them: its own schemas know every field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles.kuberay_objects import T0, cluster, condition, job, service, stamp
from tests.doubles.kubernetes.kinds import crd_objects, crds_folder
from tests.doubles.kubernetes.schema import faults, prune

JOB = job(
    "Failed",
    "FAILED",
    reason="AppFailed",
    message="exit code 1",
    failed=1,
    rayClusterName="c",
    observedGeneration=1,
    rayJobInfo={"startTime": stamp(T0)},
    rayClusterStatus={"conditions": [condition("RayClusterProvisioned", "True", "AllPodRunningAndReadyFirstTime")]},
    spec={"activeDeadlineSeconds": 60, "preRunningDeadlineSeconds": 60, "suspend": False},
)
SERVICE = service(
    condition("Ready", "False", "ZeroServeEndpoints", "x"),
    active={"a": ("RUNNING", "")},
    pending={"a": ("DEPLOY_FAILED", "x")},
    spec={"suspend": False},
)
CLUSTER = cluster(
    suspend=True, conditions=[condition("RayClusterReplicaFailure", "True", "FailedCreateWorkerPod", "x")]
)
CLUSTER["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"


def schema(kind: str) -> dict[str, Any]:
    folder = crds_folder()
    if folder is None:
        pytest.skip("KubeRay's CRDs are not here; RAYTPU_KUBERAY_CRDS names their folder")
    (crd,) = (each for each in crd_objects(folder) if each["spec"]["names"]["kind"] == kind)
    (version,) = (each for each in crd["spec"]["versions"] if each["storage"])
    return dict(version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("made", [CLUSTER, JOB, SERVICE], ids=lambda made: made["kind"])
def test_kuberays_schema_knows_every_field(made: dict[str, Any]) -> None:
    known = schema(made["kind"])
    assert prune(made, known)[1] == []
    # What a specification lacks here nobody reads; a status is judged whole.
    assert list(faults(made["status"], known["properties"]["status"])) == []
