"""What an author lays over our objects, and where that ends."""

from __future__ import annotations

from copy import deepcopy

import pytest

from airflow_raytpu.backends.kuberay.making.overlay import merge
from airflow_raytpu.backends.kuberay.manifest import check, manifest
from airflow_raytpu.model.errors import ManifestError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import Kind
from tests.unit.backends.kuberay import admission
from tests.unit.backends.kuberay.scenarios import IDENTITY, NOW, WHOLE, made, request


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"args": ["x"]}, {"args": ["y"]}, {"args": ["y"]}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({"a": "text"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        (
            {"containers": [{"name": "ray", "image": "i"}]},
            {"containers": [{"name": "log", "image": "j"}, {"name": "ray", "tty": True}]},
            {"containers": [{"name": "ray", "image": "i", "tty": True}, {"name": "log", "image": "j"}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "B", "value": "2"},
                ]
            },
        ),
        (
            {"volumes": [{"name": "shm", "emptyDir": {}}]},
            {"volumes": [{"name": "shm", "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "shm", "hostPath": {"path": "/x"}}]},
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
        ),
        (
            {"workerGroupSpecs": [{"groupName": "a", "replicas": 1}]},
            {"workerGroupSpecs": [{"groupName": "a", "rayStartParams": {"x": "1"}}]},
            {"workerGroupSpecs": [{"groupName": "a", "replicas": 1, "rayStartParams": {"x": "1"}}]},
        ),
        (
            {"tolerations": [{"operator": "Exists"}, {"key": "a"}]},
            {"tolerations": [{"key": "a", "effect": "NoExecute"}]},
            {"tolerations": [{"key": "a", "effect": "NoExecute"}, {"operator": "Exists"}]},
        ),
    ],
)
def test_merging(base, over, merged):
    before, patch = deepcopy(base), deepcopy(over)
    assert merge(base, over) == merged
    assert (base, over) == (before, patch), "the arguments are left alone"


def test_a_nameless_element_of_a_named_list_is_refused_by_its_path():
    with pytest.raises(ManifestError, match=r"pod_template.spec.containers\[1\] has no name"):
        made(request(), pod_template={"spec": {"containers": [{"name": "ray"}, {"image": "x"}]}})


def test_a_pod_template_lies_over_head_and_workers():
    over = {"spec": {"runtimeClassName": "gvisor", "containers": [{"name": "ray", "tty": True}]}}
    for template in admission.templates(made(request(), pod_template=over)):
        assert template["spec"]["runtimeClassName"] == "gvisor"
        assert [container["tty"] for container in template["spec"]["containers"]] == [True]


def test_a_manifest_lies_over_one_group_alone():
    over = {"spec": {"workerGroupSpecs": [{"groupName": "v6e-4x4", "template": {"spec": {"priority": 5}}}]}}
    head, worker = admission.templates(made(request(Kind.CLUSTER), manifest=over))
    assert "priority" not in head["spec"]
    assert worker["spec"]["priority"] == 5


GROUP = "v6e-4x4"


def _worker(**spec):
    return {"pod_template": {"spec": spec}}


def _ray(**container):
    return _worker(containers=[{"name": "ray", **container}])


def _group(**fields):
    return {"manifest": {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": GROUP, **fields}]}}}}


def _cluster(**fields):
    return {"manifest": {"spec": {"rayClusterSpec": fields}}}


def _job(**fields):
    return {"manifest": {"spec": fields}}


def _selector(**labels):
    named = {f"cloud.google.com/{key.replace('_', '-')}": value for key, value in labels.items()}
    return _group(template={"spec": {"nodeSelector": named}})


_NO_TPUS = {"name": "ray", "resources": {"limits": {"google.com/tpu": None}, "requests": {"google.com/tpu": None}}}
_TPU_NODES = {"cloud.google.com/gke-tpu-topology": "4x4"}
_TAKES_TPUS = {"name": "x", "image": "i", "resources": {"limits": {"google.com/tpu": 4}}}
BROKEN = [
    # pods
    (_worker(hostname="x"), r"spec\.rayClusterSpec\.workerGroupSpecs\[v6e-4x4\]\.template\.spec\.hostname"),
    (_worker(subdomain="x"), "spec.subdomain"),
    (_worker(affinity={"podAffinity": {}}), "spec.affinity"),
    (_worker(restartPolicy="Always"), "spec.restartPolicy is Always"),
    (_worker(restartPolicy=None), "spec.restartPolicy is not there"),
    (_worker(containers=None), "spec.containers is empty"),
    (_worker(containers=[{"name": "ray-worker", "env": []}]), "called 'ray'"),
    (_worker(tolerations=[{"key": "cloud.google.com/impending-node-termination"}]), "impending"),
    (_worker(containers=[_TAKES_TPUS]), "the first"),
    (_worker(initContainers=[_TAKES_TPUS]), "the first"),
    (_ray(resources={"limits": {"google.com/tpu": "4"}}), r"headGroupSpec.*limits.google.com/tpu is 4"),
    (_ray(resources={"requests": {"google.com/tpu": "8"}}), "4 in limits and 8 in requests"),
    (_ray(env=[{"name": "JAX_PLATFORMS", "value": "cpu"}]), r"JAX_PLATFORMS\] is cpu; it must be 'tpu,cpu'"),
    (_ray(env=[{"name": "TPU_WORKER_ID", "value": "0"}]), r"env\[TPU_WORKER_ID\]"),
    (_ray(env=[{"name": "RAY_AUTH_TOKEN", "value": "secret"}]), r"env\[RAY_AUTH_TOKEN\]"),
    (_ray(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]), "volumeMounts is of 'nowhere'"),
    (_worker(volumes=[{"name": "b", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}}]), "gke-gcsfuse/volumes"),
    ({"pod_template": {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}}, "app.kubernetes.io/name"),
    ({"pod_template": {"metadata": {"labels": {"airflow-raytpu/dag-id": "x"}}}}, "it is ours"),
    ({"pod_template": {"metadata": {"labels": {"a": "b c"}}}}, r"labels\[a\] is b c"),
    ({"pod_template": {"metadata": {"labels": "x"}}}, "labels is x; it must be an object"),
    # groups
    (_group(numOfHosts=2), r"numOfHosts is 2; it must be 4: 4x4 has 16 chips"),
    (_group(replicas=3), "in order"),
    (_group(replicas=2, maxReplicas=2), "2 slices of 4x4; it must be 1"),
    (_group(maxReplicas=None), "all three stated"),
    (_group(groupName="Other"), "groupName is Other"),
    (_group(rayStartParams={"labels": "a=b"}), r"rayStartParams\[labels\]"),
    (_group(rayStartParams={"num-cpus": 4}), r"rayStartParams\[num-cpus\] is 4; it must be text"),
    (_group(rayStartParams={"num-cpus": "4"}, resources={"TPU": "4"}), "one of the two places"),
    (_group(template={"spec": {"nodeSelector": None}}), "gke-tpu-accelerator"),
    (_selector(gke_tpu_topology="2x2"), r"2x2 of ct6e-standard-4t; it must be v6e:4x4|numOfHosts is 4; it must be 1"),
    (_selector(gke_tpu_topology="4x5"), "a shape that GKE has"),
    (_selector(gke_tpu_accelerator="tpu-v5-lite-podslice"), "which is asked for"),
    (_selector(gke_spot="true", reservation_name="r"), "gke-spot and"),
    (_selector(compute_class="c", gke_spot="true"), "ComputeClass and cloud.google.com/gke-spot"),
    (_cluster(workerGroupSpecs=None), "workerGroupSpecs is empty"),
    (_cluster(workerGroupSpecs={}), "a list"),
    (
        _cluster(workerGroupSpecs=[{"groupName": "b", "replicas": 0, "minReplicas": 0, "maxReplicas": 1}]),
        r"workerGroupSpecs\[b\]\.template\.spec\.containers is empty",
    ),
    (
        _group(template={"spec": {"nodeSelector": None, "containers": [_NO_TPUS]}}),
        r"numOfHosts is 4; it must be 1 in a group without TPUs",
    ),
    (_cluster(headGroupSpec={"template": {"spec": {"nodeSelector": _TPU_NODES}}}), "the head needs no TPU node"),
    (_cluster(workerGroupSpecs=[None]), r"workerGroupSpecs\[0\]"),
    # the cluster
    (_cluster(authOptions={"mode": "disabled"}), "authOptions.mode is disabled"),
    (_cluster(authOptions=None), "authOptions.mode is not there"),
    (_cluster(rayVersion=None), "rayVersion is not there"),
    (_cluster(rayVersion="nightly"), "rayVersion is nightly"),
    (_cluster(rayVersion="2.40.0"), "rayVersion is 2.40.0"),
    (_cluster(suspend=False), "suspend"),
    (_cluster(upgradeStrategy={"type": "Recreate"}), "upgradeStrategy"),
    (_cluster(headGroupSpec=None), "headGroupSpec.template.spec.containers"),
    (_cluster(headGroupSpec={"headService": {"metadata": {"name": "x"}}}), "headService.metadata.name"),
    (_cluster(enableInTreeAutoscaling=True), "autoscalerOptions.version"),
    (_ray(ports=[{"containerPort": 8265, "name": None}]), "with one called dashboard"),
    # features that are not ours
    (_cluster(authOptions={"enableK8sTokenAuth": True}), "enableK8sTokenAuth is True"),
    (_cluster(authOptions={"secretName": "mine"}), "secretName is mine"),
    (
        {"annotations": {"ray.io/ft-enabled": "true"}} | _cluster(gcsFaultToleranceOptions={"redisAddress": "r:1"}),
        r"annotations\[ray.io/ft-enabled\]",
    ),
    (_cluster(gcsFaultToleranceOptions={"backend": "redis", "storage": {"size": "1Gi"}}), "storage is set"),
    (_cluster(headGroupSpec={"rayStartParams": {"redis-username": "x"}}), "redis-username"),
    (
        _cluster(
            gcsFaultToleranceOptions={"redisAddress": "r:1"}, headGroupSpec={"rayStartParams": {"redis-password": "x"}}
        ),
        "redis-password",
    ),
    (_cluster(autoscalerOptions={"idleTimeoutSeconds": -1}), "idleTimeoutSeconds is -1"),
    (_cluster(autoscalerOptions={"env": [{"name": "KUBERAY_GEN_AUTOSCALER_START_CMD"}]}), "left to KubeRay"),
    (_group(labels={"ray.io/tpu-worker-id": "0"}), r"labels\[ray.io/tpu-worker-id\] is set"),
    (_group(labels={"a b": "c"}), r"labels\[a b\]"),
    (_group(idleTimeoutSeconds=60), "idleTimeoutSeconds is 60; it must be left out"),
    (_group(priority=1), "priority is 1; it must be left out"),
    # the job
    (_job(submissionMode="K8sJobMode"), "submissionMode is K8sJobMode"),
    (_job(shutdownAfterJobFinishes=False), "shutdownAfterJobFinishes is False"),
    (_job(shutdownAfterJobFinishes=1), "shutdownAfterJobFinishes is 1"),
    (_job(backoffLimit=3), "backoffLimit is 3"),
    (_job(jobId="other"), "jobId is other"),
    (_job(entrypoint="bash"), "entrypoint is bash"),
    (_job(entrypoint="python -m airflow_raytpu.runtime x; reboot"), "entrypoint"),
    (_job(activeDeadlineSeconds=None), "activeDeadlineSeconds is not there"),
    (_job(preRunningDeadlineSeconds=0), "preRunningDeadlineSeconds is 0"),
    (_job(ttlSecondsAfterFinished=None), "ttlSecondsAfterFinished is not there"),
    (_job(clusterSelector={"ray.io/cluster": "x"}), "clusterSelector"),
    (_job(deletionStrategy={"deletionRules": []}), "deletionStrategy"),
    (_job(submitterPodTemplate={"spec": {}}), "submitterPodTemplate"),
    (_job(suspend=True), "spec.suspend"),
    (_job(runtimeEnvYAML="a: [b"), "runtimeEnvYAML is"),
    (_job(runtimeEnvYAML="pip: [x]"), "working_dir is not there"),
    # the object
    ({"manifest": {"kind": "RayCluster"}}, "kind is RayCluster|spec"),
    ({"manifest": {"kind": "Pod"}}, "kind is Pod"),
    ({"manifest": {"apiVersion": "ray.io/v1alpha1"}}, "apiVersion is ray.io/v1alpha1"),
    ({"manifest": {"spec": None}}, "spec is not there"),
    ({"manifest": {"spec": "x"}}, "an object"),
    ({"manifest": {"metadata": {"name": "other"}}}, "metadata.name is other"),
    ({"manifest": {"metadata": {"name": "x" * 36}}}, "it is ours"),
    ({"manifest": {"metadata": {"namespace": "kube-system"}}}, "metadata.namespace is kube-system"),
    ({"manifest": {"metadata": {"labels": {"airflow-raytpu/run-id": "x"}}}}, "airflow-raytpu/run-id is x"),
    ({"manifest": {"metadata": {"annotations": {"airflow-raytpu/owner": "me"}}}}, "airflow-raytpu/owner is me"),
    ({"manifest": {"metadata": {"annotations": {"a": 1}}}}, r"annotations\[a\] is 1"),
    ({"manifest": {"metadata": {"ownerReferences": [{"uid": "x"}]}}}, "ownerReferences"),
    ({"manifest": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": None}}}, "queue": "q"}, "queue-name is not"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says"), BROKEN, ids=lambda value: str(value)[:80])
def test_what_breaks_a_rule_is_refused_by_its_field(options, says):
    with pytest.raises(ManifestError, match=says) as caught:
        made(request(), **options)
    assert caught.value.lever


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pod_template": {"spec": {"restartPolicy": "Always"}}}, "head.*restartPolicy is Always"),
        ({"manifest": {"spec": {"autoscalerOptions": {"version": None}}}}, "version is not there"),
        ({"manifest": {"spec": {"workerGroupSpecs": [{"groupName": "v6e-2x2-1", "suspend": True}]}}}, "suspend"),
        (
            {"manifest": {"spec": {"workerGroupSpecs": [{"groupName": "v6e-2x2-1", "idleTimeoutSeconds": -5}]}}},
            "idleTimeoutSeconds is -5",
        ),
        (
            {"ray_version": "2.55.0"}
            | {"manifest": {"spec": {"workerGroupSpecs": [{"groupName": "v6e-2x2-1", "priority": 5}]}}},
            "priority is 5",
        ),
        (
            {"manifest": {"spec": {"workerGroupSpecs": [{"groupName": "v6e-2x2-1", "maxReplicas": 2}]}}},
            "maxReplicas is 2; it must be 1",
        ),
    ],
)
def test_autoscaling_has_rules_of_its_own(options, says):
    with pytest.raises(ManifestError, match=says):
        made(request(Kind.CLUSTER, "v6e:2x2"), autoscaling=True, max_slices=2, **options)


def test_two_shapes_in_one_cluster_are_refused():
    other = deepcopy(admission.cluster(made(request(Kind.CLUSTER, "v6e:2x2")))["workerGroupSpecs"][0])
    with pytest.raises(ManifestError, match="one shape"):
        made(request(Kind.CLUSTER), manifest={"spec": {"workerGroupSpecs": [other | {"groupName": "more"}]}})


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"upgradeStrategy": {"type": "Newcluster"}}, "upgradeStrategy.type is Newcluster"),
        ({"upgradeStrategy": None}, "upgradeStrategy.type is not there"),
        ({"serveConfigV2": "- a"}, "serveConfigV2"),
        ({"upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade"}}, "clusterUpgradeOptions is not there"),
        ({"suspend": True}, "spec.suspend"),
    ],
)
def test_a_service_has_rules_of_its_own(over, says):
    with pytest.raises(ManifestError, match=says):
        made(request(Kind.SERVE, "v6e:2x2"), manifest={"spec": over})


def test_many_problems_are_told_at_once_and_counted():
    over = {
        "spec": {"hostname": "x", "subdomain": "y", "restartPolicy": "Always", "containers": None, "affinity": {"a": 1}}
    }
    with pytest.raises(ManifestError) as caught:
        made(request(), pod_template=over)
    assert "spec.hostname" in caught.value.cause
    assert "more like these" in caught.value.cause


def test_what_may_be_changed():
    over = {
        "spec": {
            "ttlSecondsAfterFinished": 0,
            "runtimeEnvYAML": "working_dir: gs://bucket/runs/code/0f1e2d3c.zip\npip: [einops]\n",
            "rayClusterSpec": {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}},
        }
    }
    job = made(request(), manifest=over)
    assert job["spec"]["ttlSecondsAfterFinished"] == 0
    assert admission.refusals(job) == []


def _whole(**changes):
    whole = deepcopy(WHOLE)
    for path, value in changes.items():
        *names, last = path.split("__")
        target = whole
        for name in names:
            target = target[int(name)] if name.isdigit() else target[name]
        if value is None:
            target.pop(last)
        else:
            target[last] = value
    return whole


def test_a_whole_cluster_is_made_ours():
    cluster = manifest(request(Kind.CLUSTER), KubeRayOptions(whole=WHOLE), NOW)
    assert cluster["metadata"]["name"] == request(Kind.CLUSTER).name
    assert cluster["metadata"]["labels"]["team"] == "digits"
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert admission.refusals(cluster) == []
    assert WHOLE["metadata"]["name"] == "ours-by-hand", "the author's own is left alone"


def test_a_whole_job_keeps_what_is_not_ours():
    job = made(request())
    whole = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {**job["spec"], "entrypointNumCpus": 1, "jobId": "x"}}
    again = manifest(request(), KubeRayOptions(whole=whole), NOW)
    assert again["spec"] == {**job["spec"], "entrypointNumCpus": 1}


def test_a_whole_one_may_be_a_copy_of_another_tasks():
    other = made(request(identity=IDENTITY.with_attempt(7)))
    assert made(request(), whole={**other, "metadata": {"labels": other["metadata"]["labels"]}}) == made(request())


def test_overlays_lie_over_a_whole_one_too():
    over = {"spec": {"containers": [{"name": "log", "image": "j"}]}}
    templates = admission.templates(made(request(), whole=WHOLE, pod_template=over))
    assert [[each["name"] for each in template["spec"]["containers"]] for template in templates] == [
        ["head", "log"],
        ["main", "log"],
    ]


SPEC = "spec__workerGroupSpecs__0__template__spec"


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        ({}, "whole.kind is not there"),
        (_whole(kind="RayService"), "whole.kind is RayService; it must be RayCluster or RayJob"),
        (_whole(apiVersion="ray.io/v1alpha1"), "whole.apiVersion is ray.io/v1alpha1"),
        (_whole(spec=None), "whole.spec is not there"),
        (_whole(metadata={"finalizers": ["x"]}), "whole.metadata.finalizers"),
        (_whole(spec__headGroupSpec=None), "whole.spec.headGroupSpec.template"),
        (_whole(spec__workerGroupSpecs=None), "whole.spec.workerGroupSpecs"),
        (_whole(spec__workerGroupSpecs={}), "whole.spec.workerGroupSpecs"),
        (_whole(spec__workerGroupSpecs=[None]), r"whole.spec.workerGroupSpecs\[0\]"),
        (_whole(spec__workerGroupSpecs__0__template={"spec": []}), "must be an object"),
        (_whole(**{f"{SPEC}__containers": ["x"]}), "must be an object"),
        (_whole(**{f"{SPEC}__containers": [{"name": "a", "image": "b"}]}), "google.com/tpu 0 in limits"),
        (_whole(**{f"{SPEC}__restartPolicy": None}), "restartPolicy"),
        (_whole(spec__workerGroupSpecs__0__numOfHosts=None), "numOfHosts is 1; it must be 4"),
        (_whole(spec__workerGroupSpecs__0__maxReplicas=None), "all three stated"),
        (_whole(spec__workerGroupSpecs__0__replicas=0, spec__workerGroupSpecs__0__minReplicas=0), "0 slices of 4x4"),
        (_whole(**{f"{SPEC}__containers__0__env": [{"name": "A", "value": "1"}] * 2}), "there twice"),
        (_whole(spec__authOptions={}), "authOptions.mode is not there"),
    ],
    ids=lambda value: str(value)[-90:],
)  # fmt: skip
def test_a_whole_one_keeps_the_same_rules(whole, says):
    with pytest.raises(ManifestError, match=says) as caught:
        made(request(), whole=whole)
    assert caught.value.lever


def test_a_whole_one_holds_the_slice_that_is_asked_for():
    with pytest.raises(ManifestError, match="v6e:8x8, which is asked for"):
        made(request(tpu_slice="v6e:8x8"), whole=WHOLE)


def test_a_group_of_the_authors_own_is_labelled_like_ours():
    group = {
        "groupName": "more",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), 1),
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "ray", "image": "i"}]}},
    }
    job = made(request(), manifest={"spec": {"rayClusterSpec": {"workerGroupSpecs": [group]}}})
    assert [each["groupName"] for each in admission.cluster(job)["workerGroupSpecs"]] == ["v6e-4x4", "more"]
    labels = [template["metadata"]["labels"] for template in admission.templates(job)]
    assert labels[0] == labels[1] == labels[2]
    assert admission.refusals(job) == []


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (Kind.TRAIN, "x" * 36, "at most 35"),
        (Kind.CLUSTER, "x" * 42, "at most 41"),
        (Kind.CLUSTER, "1x", "metadata.name is 1x"),
        (Kind.CLUSTER, None, "metadata.name is not there"),
    ],
)
def test_check_alone_knows_how_long_a_name_may_be(kind, name, says):
    changed = deepcopy(made(request(kind)))
    changed["metadata"]["name"] = name
    with pytest.raises(ManifestError, match=says):
        check(changed)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("labels", "airflow-raytpu/request"),
        ("labels", "app.kubernetes.io/managed-by"),
        ("annotations", "airflow-raytpu/owner"),
        ("annotations", "airflow-raytpu/heartbeat"),
    ],
)
def test_check_alone_wants_what_the_object_is_found_by(part, key):
    changed = deepcopy(made(request()))
    del changed["metadata"][part][key]
    with pytest.raises(ManifestError, match=key):
        check(changed)


def test_check_alone_wants_our_runtime_to_run():
    changed = deepcopy(made(request()))
    changed["spec"]["entrypoint"] = "bash -c reboot"
    with pytest.raises(ManifestError, match="entrypoint is bash -c reboot"):
        check(changed)


def test_check_alone_wants_tpus():
    changed = deepcopy(made(request(Kind.CLUSTER), cpu_groups=[{"name": "load"}]))
    del changed["spec"]["workerGroupSpecs"][0]
    with pytest.raises(ManifestError, match="without TPUs"):
        check(changed)


def test_check_alone_takes_any_text():
    for nothing in ({}, {"kind": "RayJob"}, {"kind": ["x"]}, {"kind": "RayJob", "apiVersion": "ray.io/v1"}):
        with pytest.raises(ManifestError):
            check(nothing)
