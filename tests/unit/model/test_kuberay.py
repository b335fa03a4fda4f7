"""Options survive JSON, are laid over one another, and say what is wrong with them by the key."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import ManifestError, RequestError
from airflow_raytpu.model.kuberay import BucketMount, CpuGroup, KubeRayOptions, Provisioning, Resources
from airflow_raytpu.model.kuberay_rules import check_together

FULL = {
    "namespace": "ml",
    "image": "registry.example/ray-tpu:1@sha256:abc",
    "ray_version": "2.61.0",
    "service_account": "ray",
    "image_pull_secrets": ["one", "two"],
    "image_pull_policy": "Always",
    "provisioning": "reservation",
    "reservation": "mine",
    "reservation_project": "theirs",
    "reservation_block": "b1",
    "grace_s": 60.0,
    "queue": "team",
    "queue_priority": "high",
    "priority_class": "batch",
    "autoscaling": True,
    "min_slices": 0,
    "max_slices": 4,
    "idle_s": 90.0,
    "elastic": True,
    "head": {"cpu": "2", "memory": "8Gi", "ephemeral_storage": ""},
    "worker": {"cpu": "32", "memory": "100Gi", "ephemeral_storage": "40Gi"},
    "cpu_groups": [{"name": "load", "replicas": 2, "cpus": 8}],
    "buckets": [{"bucket": "data-1", "path": "/data", "read_only": True, "options": "implicit-dirs,uid=1000"}],
    "env": {"A": "1"},
    "secret_env": {"B": "secret/key"},
    "labels": {"team": "a"},
    "annotations": {"note": "any text: at all"},
    "node_selector": {"pool": "x"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "privileged": True,
    "pod_template": {"spec": {"hostNetwork": True}},
    "manifest": {"spec": {"headServiceAnnotations": {"a": "b"}}},
}


def test_every_option_survives_json():
    options = KubeRayOptions.from_dict(FULL)
    check_together(options)
    assert json.loads(json.dumps(options.to_dict())) == FULL
    assert KubeRayOptions.from_dict(options.to_dict()) == options
    assert (options.provisioning, options.cpu_groups) == (
        Provisioning.RESERVATION,
        (CpuGroup(name="load", replicas=2, cpus=8),),
    )
    assert options.worker == Resources(cpu="32", memory="100Gi", ephemeral_storage="40Gi")
    assert options.buckets[0] == BucketMount(
        bucket="data-1", path="/data", read_only=True, options="implicit-dirs,uid=1000"
    )


def test_values_made_in_python_are_taken_as_they_are():
    head = Resources(cpu="2", memory="8Gi")
    options = KubeRayOptions.from_dict({"head": head, "provisioning": Provisioning.SPOT, "grace_s": 30})
    assert (options.head, options.provisioning, options.grace_s) == (head, Provisioning.SPOT, 30.0)
    assert isinstance(options.to_dict()["grace_s"], float)


def test_defaults_are_left_out():
    assert KubeRayOptions().to_dict() == {}
    assert KubeRayOptions.from_dict({}) == KubeRayOptions()


def test_a_whole_manifest_survives_json():
    whole = {"kind": "RayCluster", "spec": {"workerGroupSpecs": [{"groupName": "a"}]}}
    assert KubeRayOptions.from_dict({"whole": whole}).to_dict() == {"whole": whole}


def test_later_dicts_win_key_by_key():
    options = KubeRayOptions.over(
        {"image": "a", "namespace": "n", "env": {"A": "1"}, "autoscaling": True},
        {"image": "b"},
        {"env": {"B": "2"}, "autoscaling": False},
    )
    assert (options.image, options.namespace, options.env, options.autoscaling) == ("b", "n", {"B": "2"}, False)


@pytest.mark.parametrize(
    ("data", "says", "lever"),
    [
        ({"imagee": "x"}, "no 'imagee'", "'image'"),
        ({"xyz": "x"}, "no 'xyz'", "namespace, image"),
        ({"provisioning": "spott"}, "no 'spott'", "'spot'"),
        ({"autoscaling": "true"}, "autoscaling is 'true', of type str", "true or false"),
        ({"min_slices": True}, "min_slices is True", "whole number"),
        ({"grace_s": "30"}, "grace_s is '30'", "a number"),
        ({"env": {"A": 1}}, "env\\['A'\\] is 1", "quote"),
        ({"env": ["A"]}, "env is \\['A'\\]", "an object"),
        ({"head": {"cpuu": "1"}}, "head has no 'cpuu'", "'cpu'"),
        ({"head": {"cpu": "1"}}, "head lacks memory", "cpu, memory"),
        ({"head": None}, "head is None", "an object"),
        ({"cpu_groups": [{"replicas": 1}]}, r"cpu_groups\[0\] lacks name", "name"),
        ({"cpu_groups": {"name": "x"}}, "cpu_groups is", "a list"),
        ({"buckets": [{"bucket": "b", "path": 1}]}, r"buckets\[0\].path is 1", "text"),
        ({"tolerations": ["x"]}, r"tolerations\[0\] is 'x'", "an object"),
        ({"image_pull_secrets": "x"}, "image_pull_secrets is 'x'", "a list"),
    ],
)
def test_a_wrong_key_or_kind_is_named(data, says, lever):
    with pytest.raises(RequestError, match=says) as caught:
        KubeRayOptions.from_dict(data)
    assert lever in caught.value.lever


@pytest.mark.parametrize(
    "data",
    [
        {"namespace": "My_Ns"},
        {"namespace": "a" * 64},
        {"image": "img; rm -rf /"},
        {"image": "a b"},
        {"ray_version": "latest"},
        {"ray_version": "2.52.0"},
        {"service_account": "Ray"},
        {"image_pull_secrets": ["a/b"]},
        {"image_pull_policy": "always"},
        {"reservation": "projects/p/reservations/r"},
        {"queue": "Team A"},
        {"run_limit_s": 0.0},
        {"grace_s": -1.0},
        {"grace_s": 3601.0},
        {"max_slices": 0},
        {"min_slices": -1},
        {"idle_s": float("nan")},
        {"head": {"cpu": "0", "memory": "1Gi"}},
        {"head": {"cpu": "four", "memory": "1Gi"}},
        {"worker": {"cpu": "4", "memory": "16GiB"}},
        {"cpu_groups": [{"name": "A"}]},
        {"cpu_groups": [{"name": "a"}, {"name": "a"}]},
        {"cpu_groups": [{"name": "a", "replicas": 0}]},
        {"buckets": [{"bucket": "gs://data", "path": "/data"}]},
        {"buckets": [{"bucket": "data", "path": "data"}]},
        {"buckets": [{"bucket": "data", "path": "/"}]},
        {"buckets": [{"bucket": "data", "path": "/a/../etc"}]},
        {"buckets": [{"bucket": "data", "path": "/tmp/ray"}]},
        {"buckets": [{"bucket": "data", "path": "/a"}, {"bucket": "more", "path": "/a"}]},
        {"buckets": [{"bucket": "data", "path": "/a", "options": "a\nb"}]},
        {"env": {"1A": "x"}},
        {"env": {"JAX_PLATFORMS": "cpu"}},
        {"env": {"RAY_AUTH_TOKEN": "secret"}},
        {"env": {"TPU_WORKER_ID": "0"}},
        {"secret_env": {"A": "hf_myactualtoken"}},
        {"secret_env": {"A": "Name/key"}},
        {"labels": {"app.kubernetes.io/name": "mine"}},
        {"labels": {"ray.io/cluster": "x"}},
        {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
        {"labels": {"team": "a b"}},
        {"labels": {"-": "a"}},
        {"annotations": {"airflow-raytpu/owner": "me"}},
        {"annotations": {"a b": "c"}},
        {"node_selector": {"cloud.google.com/gke-tpu-topology": "2x2"}},
        {"node_selector": {"cloud.google.com/gke-spot": "true"}},
        {"tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"key": "cloud.google.com/impending-node-termination"}]},
        {"tolerations": [{"key": "a", "efect": "NoSchedule"}]},
        {"pod_template": {"containers": []}},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused_with_a_lever(data):
    key = next(iter(data))
    with pytest.raises(ManifestError, match=key) as caught:
        KubeRayOptions.from_dict(data)
    assert caught.value.lever


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"provisioning": "reservation"}, "without its name"),
        ({"provisioning": "spot", "reservation": "r"}, "reservation is set with provisioning 'spot'"),
        ({"reservation_block": "b"}, "reservation_block is set"),
        ({"provisioning": "flex-start"}, "without run_limit_s"),
        ({"provisioning": "queued", "queue": "q"}, "without run_limit_s"),
        ({"provisioning": "queued", "run_limit_s": 3600.0}, "without a queue"),
        ({"run_limit_s": 3600.0}, "run_limit_s is set with provisioning 'on-demand'"),
        ({"compute_class": "c", "provisioning": "spot"}, "compute_class c is set with provisioning 'spot'"),
        ({"queue_priority": "high"}, "without a queue"),
        ({"elastic": True, "autoscaling": True}, "without a queue"),
        ({"max_slices": 2}, "max_slices is set without autoscaling"),
        ({"autoscaling": True, "min_slices": 3, "max_slices": 2}, "min_slices is 3 and max_slices 2"),
        ({"env": {"A": "1"}, "secret_env": {"A": "s/k"}}, "both set A"),
    ],
)
def test_what_does_not_go_together_is_refused_when_all_is_known(data, says):
    options = KubeRayOptions.from_dict(data)  # the other half may come from the connection
    with pytest.raises(ManifestError, match=says) as caught:
        check_together(options)
    assert caught.value.lever


def test_every_option_is_on_the_page():
    page = (Path(__file__).parents[3] / "docs" / "kuberay.md").read_text()
    assert [each.name for each in fields(KubeRayOptions) if f"`{each.name}`" not in page] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FULL, "whole", "nonsense"]), JSON, max_size=4))
def test_any_json_gives_options_or_an_error_of_ours(data):
    lever = ""
    try:
        options = KubeRayOptions.from_dict(data)
        check_together(options)
    except RequestError as error:
        lever = error.lever
    assert lever or KubeRayOptions.from_dict(options.to_dict()) == options
