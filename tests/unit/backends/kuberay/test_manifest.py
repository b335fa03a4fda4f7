"""What a request becomes, rule by rule; in full in the golden files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from airflow_raytpu.backends.kuberay.making import jobs
from airflow_raytpu.backends.kuberay.manifest import manifest
from airflow_raytpu.model.errors import ManifestError, RequestError, SliceShapeError
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import Kind
from airflow_raytpu.runtime.serve import configuration
from airflow_raytpu.runtime.slices import LOSS_SHOWS_S
from tests.unit.backends.kuberay import admission
from tests.unit.backends.kuberay.scenarios import IDENTITY, IMAGE, NOW, SCENARIOS, WHOLE, made, request


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_real_cluster_takes_every_scenario(name):
    _, asked, options = SCENARIOS[name]
    assert admission.refusals(made(asked, **options)) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda job: job["spec"].update(nope=1), "nope"),
        (lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"].update(nope=1), "nope"),
        (lambda job: job["spec"].update(ttlSecondsAfterFinished=1.5), "integer"),
        (lambda job: job["spec"]["rayClusterSpec"].update(authOptions={"mode": "tokens"}), "token"),
        (lambda job: job["metadata"]["labels"].update(a="b+c"), "b+c"),
        (lambda job: admission.cluster(job)["workerGroupSpecs"][0].update(numOfHosts=2), "Number of workers"),
        (lambda job: admission.cluster(job)["workerGroupSpecs"][0].update(minReplicas=2), "replicas"),
        (lambda job: admission.templates(job)[1]["spec"].pop("nodeSelector"), "topology"),
    ],
)
def test_the_real_cluster_of_these_tests_does_refuse(spoil, says):
    job = made(request())
    spoil(job)
    assert says in " ".join(admission.refusals(job))


def test_kind_by_kind():
    kinds = {kind: made(request(kind))["kind"] for kind in Kind}
    assert (kinds.pop(Kind.CLUSTER), kinds.pop(Kind.SERVE)) == ("RayCluster", "RayService")
    assert set(kinds.values()) == {"RayJob"}


def test_a_job_of_a_shared_cluster_has_no_object():
    with pytest.raises(ManifestError, match="runs on the cluster shared"):
        made(request(cluster="shared"))


def test_without_an_image_nothing_is_made():
    with pytest.raises(ManifestError, match="no image"):
        manifest(request(), KubeRayOptions(), NOW)


def test_a_part_of_a_slice_needs_a_cluster():
    with pytest.raises(ManifestError, match="part of a slice") as caught:
        made(request(tpu_slice="v6e:2x4/4x4"))
    assert "v6e:4x4" in caught.value.lever


def test_a_slice_that_is_none_is_refused():
    with pytest.raises(SliceShapeError):
        made(request(tpu_slice="v6e:4x5"))


def test_kuberay_gives_up_later_than_we_do():
    asked = request()
    job = made(asked)["spec"]
    limits = asked.limits
    assert job["activeDeadlineSeconds"] == limits.total_s + jobs.MARGIN_S
    assert job["preRunningDeadlineSeconds"] == limits.slice_wait_s + limits.start_s + jobs.MARGIN_S


def test_deadlines_go_on_where_the_object_is_made_late():
    late = manifest(request(), KubeRayOptions(image=IMAGE), NOW + 3000)["spec"]
    assert made(request())["spec"]["activeDeadlineSeconds"] - late["activeDeadlineSeconds"] == 3000
    past = manifest(request(), KubeRayOptions(image=IMAGE), NOW + 1e7)["spec"]
    assert (past["activeDeadlineSeconds"], past["preRunningDeadlineSeconds"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"provisioning": "flex-start", "run_limit_s": 7200.0}, 7200 + 3600),  # the wait for nodes counts
        ({"provisioning": "flex-start", "run_limit_s": 7200.0, "queue": "q"}, 7200),  # Kueue waits before it counts
        ({"provisioning": "queued", "run_limit_s": 7200.0, "queue": "q"}, 7200),
        ({"provisioning": "flex-start", "run_limit_s": 500_000.0}, 86_400 + 300),  # total is shorter
    ],
)
def test_a_job_does_not_outlive_nodes_with_a_run_limit(options, seconds):
    assert made(request(), **options)["spec"]["activeDeadlineSeconds"] == seconds


def test_the_same_request_gives_the_same_object():
    asked = request(Kind.CLUSTER)
    assert json.dumps(made(asked)) == json.dumps(made(asked))
    later = manifest(asked, KubeRayOptions(image=IMAGE), NOW + 60)
    heartbeat = later["metadata"]["annotations"].pop("airflow-raytpu/heartbeat")
    assert heartbeat == f"{NOW + 60:.0f}"
    assert later["spec"] == made(asked)["spec"]


def test_the_head_has_no_tpu_no_jax_and_no_tpu_node():
    options = {"provisioning": "spot", "node_selector": {"pool": "x"}, "tolerations": [{"key": "k"}]}
    head = admission.templates(made(request(), **options))[0]["spec"]
    assert "google.com/tpu" not in json.dumps(head)
    assert "JAX_PLATFORMS" not in json.dumps(head)
    assert not {"nodeSelector", "tolerations", "restartPolicy"} & set(head)


def test_a_shared_cluster_has_a_keeper_of_its_own():
    head, worker = admission.templates(made(request(Kind.CLUSTER)))
    ray, keeper = head["spec"]["containers"]
    assert (ray["name"], keeper["name"], keeper["image"]) == ("ray", "keeper", IMAGE)
    compile(keeper["command"][2], "keeper", "exec")
    assert "$(" not in keeper["command"][2].replace("$$(", "")
    assert keeper["env"] == [{"name": "RAYTPU_CLUSTER", "value": request(Kind.CLUSTER).name}]
    assert len(worker["spec"]["containers"]) == 1
    assert [len(each["spec"]["containers"]) for each in admission.templates(made(request()))] == [1, 1]


def test_a_secret_is_only_pointed_at():
    job = made(request(), secret_env={"HF_TOKEN": "hf-token/token"})
    for template in admission.templates(job):
        (variable,) = (each for each in template["spec"]["containers"][0]["env"] if each["name"] == "HF_TOKEN")
        assert variable == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}}


@pytest.mark.parametrize(
    ("tpu_slice", "machine"),
    [("v6e:2x4@4t", "ct6e-standard-4t"), ("v5e:2x4@4t", "ct5lp-hightpu-4t"), ("v6e:2x4@8t", None), ("v6e:4x4", None)],
)
def test_the_machine_is_named_where_a_larger_one_looks_the_same(tpu_slice, machine):
    selector = admission.templates(made(request(tpu_slice=tpu_slice)))[1]["spec"]["nodeSelector"]
    assert selector.get("node.kubernetes.io/instance-type") == machine


def test_single_hosts_scale_by_groups():
    cluster = made(request(Kind.CLUSTER, "v6e:2x2"), autoscaling=True, min_slices=0, max_slices=3)
    groups = admission.cluster(cluster)["workerGroupSpecs"]
    assert [(group["replicas"], group["minReplicas"], group["maxReplicas"]) for group in groups] == [
        (1, 0, 1),
        (0, 0, 1),
        (0, 0, 1),
    ]
    assert len({group["groupName"] for group in groups}) == 3


def test_autoscaling_without_bounds_keeps_what_is_asked_for():
    (group,) = admission.cluster(made(request(Kind.CLUSTER, "v6e:4x4*2"), autoscaling=True))["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)


def test_the_autoscaler_is_told_what_a_slice_will_be():
    (group,) = admission.cluster(made(request(Kind.CLUSTER), autoscaling=True, max_slices=2))["workerGroupSpecs"]
    assert group["labels"] == {"ray.io/tpu-pod-type": "v6e-16", "ray.io/tpu-topology": "4x4"}
    assert all("labels" not in each for each in admission.cluster(made(request()))["workerGroupSpecs"])


@pytest.mark.parametrize("options", [{}, {"idle_s": 60.0, "max_slices": 9}, {"queue": "tpu"}])
def test_the_cluster_of_an_elastic_task_begins_with_its_fewest_slices(options):
    job = made(request(tpu_slice="v6e:4x4*3", arguments={"elastic": [1, 3]}), **options)

    assert admission.refusals(job) == []
    cluster = admission.cluster(job)
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 3)
    assert (cluster["enableInTreeAutoscaling"], cluster["autoscalerOptions"]["version"]) == (True, "v2")
    assert ("kueue.x-k8s.io/elastic-job" in job["metadata"]["annotations"]) is ("queue" in options)


def test_an_elastic_task_that_takes_one_number_alone_needs_no_autoscaler():
    cluster = admission.cluster(made(request(tpu_slice="v6e:4x4*2", arguments={"elastic": [2, 2]})))
    assert [group["replicas"] for group in cluster["workerGroupSpecs"]] == [2]
    assert "enableInTreeAutoscaling" not in cluster


def test_a_cluster_of_the_authors_may_begin_with_any_number_of_an_elastic_tasks_slices():
    asked = request(tpu_slice="v6e:4x4*2", arguments={"elastic": [1, 2]})
    assert made(asked, whole=WHOLE)["kind"] == "RayJob"
    with pytest.raises(ManifestError, match="1 slices of 4x4"):
        made(replace(asked, arguments={"elastic": [2, 2]}), whole=WHOLE)


def test_a_service_runs_what_a_rollout_of_the_runtime_would():
    asked = request(Kind.SERVE, "v6e:2x2")
    config = yaml.safe_load(made(asked)["spec"]["serveConfigV2"])
    assert config["applications"] == [configuration(asked)]


def test_labels_find_the_object_and_its_pods():
    job = made(request())
    ours = {key: value for key, value in job["metadata"]["labels"].items() if key.startswith("airflow-raytpu/")}
    assert len(ours) == 5
    assert ours["airflow-raytpu/request"] == job["metadata"]["name"]
    for template in admission.templates(job):
        assert ours.items() <= template["metadata"]["labels"].items()
        assert "app.kubernetes.io/name" not in template["metadata"]["labels"]
    second = made(request(identity=IDENTITY.with_attempt(2)))["metadata"]["labels"]
    assert {key for key in ours if second[key] != ours[key]} == {"airflow-raytpu/request"}


def test_a_hostile_path_is_one_word_to_the_shell():
    job = made(request(storage="gs://bucket/a b/$(reboot)/'x'"))
    assert job["spec"]["entrypoint"].endswith(
        """'gs://bucket/a b/$(reboot)/'"'"'x'"'"'/outbox/""" + f"{job['metadata']['name']}.request.json'"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"provisioning": "reservation"}, "without its name"),
        ({"autoscaling": True, "queue": "q"}, "elastic-job"),
        ({"cpu_groups": [{"name": "head"}], "queue": "q"}, r"workerGroupSpecs\[head\]"),
        ({"cpu_groups": [{"name": f"g{number}"} for number in range(17)], "queue": "q"}, "18 groups"),
        ({"cpu_groups": [{"name": "a" * 60}]}, "at most 63 characters with replica and host"),
        ({"cpu_groups": [{"name": "v6e-4x4"}]}, "there 2 times"),
        ({"env": {"BLOB": "x" * 1_000_000}}, "etcd takes no more"),
        ({"annotations": {"blob": "x" * 300_000}}, "metadata.annotations is"),
    ],
)
def test_options_that_no_cluster_takes_are_refused_by_field(options, says):
    with pytest.raises(ManifestError, match=says) as caught:
        made(request(Kind.CLUSTER), **options)
    assert caught.value.lever


def test_a_request_from_json_makes_the_same_object():
    asked = request(options={"image": IMAGE, "provisioning": "spot"})
    again = type(asked).from_dict(json.loads(json.dumps(asked.to_dict())))
    assert manifest(again, KubeRayOptions.from_dict(again.options), NOW) == made(asked, provisioning="spot")


def test_nothing_of_airflow_or_kubernetes_is_needed():
    with pytest.raises(RequestError):
        made(replace(request(), slice="nonsense"))


def test_workers_of_a_service_are_not_asked_for_a_proxy_that_only_the_head_has():
    """KubeRay's own probe of them asks for one, and they would never be ready; it leaves a stated probe alone."""
    probes = [template["spec"]["containers"][0].get("readinessProbe") for template in _workers(Kind.SERVE)]
    assert [probe["httpGet"] for probe in probes] == [{"path": "/api/healthz", "port": 52365}]
    assert all("readinessProbe" not in each["spec"]["containers"][0] for each in _workers(Kind.TRAIN))


def test_a_lost_host_is_known_before_the_others_words_of_it_are_believed():
    """Ray's check of hosts, as the head's environment sets it, against the time that a loss is given to show."""
    head = admission.cluster(made(request()))["headGroupSpec"]["template"]["spec"]["containers"][0]
    stated = {each["name"]: each.get("value") for each in head["env"]}
    period, timeout = (int(stated[f"RAY_health_check_{what}_ms"]) / 1000 for what in ("period", "timeout"))
    assert int(stated["RAY_health_check_failure_threshold"]) * (period + timeout) < LOSS_SHOWS_S


def _workers(kind):
    groups = admission.cluster(made(request(kind, "v6e:4x4")))["workerGroupSpecs"]
    return [group["template"] for group in groups]
