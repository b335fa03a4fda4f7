"""Whatever is asked for in whatever words: an object that a real cluster takes, or an error of ours."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.backends.kuberay.manifest import check, manifest
from airflow_raytpu.model.deadlines import Deadlines
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.kuberay import KubeRayOptions
from airflow_raytpu.model.request import Kind, RayRequest
from airflow_raytpu.placement import catalogue
from tests.unit.backends.kuberay import admission
from tests.unit.backends.kuberay.scenarios import IDENTITY, IMAGE, NOW, SERVING, request

ROWS = [f"{row.generation.name}:{row.topology}@{row.machine_type}" for row in catalogue.shapes()]
HOSTILE = st.one_of(
    st.text(min_size=1, max_size=250),
    st.sampled_from(
        [
            "scheduled__2026-11-29T00:00:00+00:00",
            "manual__'; rm -rf / #",
            "$(reboot)`reboot`",
            "a\nspec:\n  suspend: true\n",
            "{{ params.x }}{% raw %}",
            "\"quoted\" 'twice' \\",
            "-" * 250,
            "é" * 250,
            "..",
            "a|b|c",
            "\x00\x1b[31m",
        ]
    ),
)
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
AMOUNT = st.sampled_from(["1", "500m", "4", "24"])
RESOURCES = st.fixed_dictionaries(
    {"cpu": AMOUNT, "memory": st.sampled_from(["8Gi", "512Mi"])},
    optional={"ephemeral_storage": st.sampled_from(["40Gi", "1Ti"])},
)
IDENTITIES = st.builds(
    Identity,
    deployment=HOSTILE,
    dag_id=HOSTILE | st.just(""),  # a cluster that DAGs share has no DAG and no run
    task_id=HOSTILE,
    run_id=HOSTILE | st.just(""),
    map_index=st.integers(-1, 10_000),
    attempt=st.integers(1, 99),
)


def asked(kind, tpu_slice, identity):
    return RayRequest(
        identity=identity,
        kind=kind,
        slice=tpu_slice,
        storage=f"gs://bucket/runs/{identity.storage_path()}",
        limits=Deadlines().since(NOW),
        code=None if kind is Kind.CLUSTER else "gs://bucket/runs/code/0.zip",
        arguments=SERVING if kind is Kind.SERVE else {},
    )


SLICES = st.one_of(st.sampled_from(ROWS), st.builds("v6e:4x4*{}".format, st.integers(2, 12)))
REQUESTS = st.builds(asked, st.sampled_from(list(Kind)), SLICES, IDENTITIES)
PROVISIONING = st.sampled_from(
    [
        {},
        {"provisioning": "spot", "grace_s": 25.0},
        {"provisioning": "reservation", "reservation": "r", "reservation_project": "p", "reservation_block": "b"},
        {"provisioning": "flex-start", "run_limit_s": 3600.0},
        {"provisioning": "queued", "run_limit_s": 3600.0, "queue": "q", "queue_priority": "high"},
        {"compute_class": "any"},
    ]
)
SCALING = st.sampled_from(
    [{}, {"autoscaling": True}, {"autoscaling": True, "min_slices": 0, "max_slices": 20, "idle_s": 0.0}]
)
QUEUE = st.sampled_from([{}, {"queue": "team"}, {"queue": "team", "elastic": True}])
OPTIONS = st.builds(
    lambda *parts: {name: value for part in parts for name, value in part.items()},
    PROVISIONING,
    SCALING,
    QUEUE,
    st.fixed_dictionaries(
        {"image": st.just(IMAGE)},
        optional={
            "head": RESOURCES,
            "worker": RESOURCES,
            "cpu_groups": st.lists(
                st.fixed_dictionaries({"name": NAMES, "replicas": st.integers(1, 9), "cpus": st.integers(1, 64)}),
                max_size=3,
                unique_by=lambda group: group["name"],
            ),
            "buckets": st.just([{"bucket": "data", "path": "/data"}, {"bucket": "more", "path": "/m", "options": ""}]),
            "env": st.dictionaries(NAMES.map(lambda name: f"X_{name.replace('-', '_')}"), HOSTILE, max_size=3),
            "secret_env": st.just({"HF_TOKEN": "hf/token"}),
            "annotations": st.dictionaries(NAMES, HOSTILE, max_size=2),
            "labels": st.just({"team": "a"}),
            "service_account": NAMES,
            "image_pull_secrets": st.lists(NAMES, max_size=2, unique=True),
            "image_pull_policy": st.sampled_from(["Always", "IfNotPresent"]),
            "priority_class": NAMES,
            "privileged": st.booleans(),
            "tolerations": st.just([{"key": "dedicated", "operator": "Exists"}]),
            "node_selector": st.just({"pool": "x"}),
        },
    ),
)
THOROUGH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@THOROUGH
@given(REQUESTS, OPTIONS)
def test_what_is_made_is_taken_by_a_real_cluster(request_, options):
    try:
        made = manifest(request_, KubeRayOptions.from_dict(options), NOW)
    except RequestError as error:
        _fits(error, r"elastic-job|at most 17 \(Kueue\)|without a queue")  # all in which these do not go together
        return
    assert admission.refusals(made) == []
    assert yaml.safe_load(yaml.safe_dump(made)) == made


@pytest.mark.parametrize("tpu_slice", ROWS)
@pytest.mark.parametrize("kind", [Kind.CLUSTER, Kind.TRAIN])
def test_every_shape_of_the_catalogue_passes_the_webhook(tpu_slice, kind):
    made = manifest(request(kind, tpu_slice), KubeRayOptions(image=IMAGE), NOW)
    assert [*admission.tpu_webhook(made), *admission.kuberay(made)] == []
    (group,) = admission.cluster(made)["workerGroupSpecs"]
    (row,) = (
        each
        for each in catalogue.shapes()
        if f"{each.generation.name}:{each.topology}@{each.machine_type}" == tpu_slice
    )
    container = group["template"]["spec"]["containers"][0]
    assert group["numOfHosts"] * int(container["resources"]["limits"]["google.com/tpu"]) == row.chips
    assert container["resources"]["requests"]["google.com/tpu"] == container["resources"]["limits"]["google.com/tpu"]
    assert row.node_selector.items() <= group["template"]["spec"]["nodeSelector"].items()


@THOROUGH
@given(IDENTITIES, st.sampled_from([Kind.TRAIN, Kind.CLUSTER]))
def test_no_id_gets_out_of_its_place(identity, kind):
    made = manifest(asked(kind, "v6e:4x4", identity), KubeRayOptions(image=IMAGE), NOW)
    plain = manifest(asked(kind, "v6e:4x4", IDENTITY), KubeRayOptions(image=IMAGE), NOW)
    assert made["metadata"]["annotations"][naming.OWNER] == identity.owner()
    assert list(_paths(made)) == list(_paths(plain)), "an id has made a field"
    if kind is Kind.TRAIN:
        # One word each to the shell that Ray hands it to, whatever the ids are.
        words = shlex.split(made["spec"]["entrypoint"])
        assert words[:3] == ["python", "-m", "airflow_raytpu.runtime"]
        assert len(words) == 4
        assert words[3].startswith("gs://bucket/runs/")
        assert yaml.safe_load(made["spec"]["runtimeEnvYAML"]) == {"working_dir": "gs://bucket/runs/code/0.zip"}


@given(HOSTILE)
def test_any_text_is_a_label_and_stays_what_it_is(text):
    value = naming.label_value(text)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)
    assert naming.label_value(text) == value
    if value == text:
        assert naming.label_value(value) == value


@given(HOSTILE, HOSTILE)
def test_two_texts_are_two_labels(one, other):
    assert (naming.label_value(one) == naming.label_value(other)) is (one == other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "template", "spec"]), inner),
    max_leaves=4,
)


@THOROUGH
@given(st.data())
def test_an_overlay_of_any_kind_is_merged_or_refused_by_an_error_of_ours(data):
    made = manifest(request(), KubeRayOptions(image=IMAGE), NOW)
    path = data.draw(st.sampled_from([path for path in _paths(made) if path and "[" not in "".join(map(str, path))]))
    patch = data.draw(JSON)
    for name in reversed([name for name in path if not isinstance(name, int)]):
        patch = {name: patch}
    try:
        changed = manifest(request(), KubeRayOptions(image=IMAGE, manifest=patch), NOW)
    except RequestError as error:
        _fits(error)
    else:
        check(changed)
        assert [*admission.tpu_webhook(changed), *admission.kueue(changed)] == []


def _fits(error, says=""):
    assert re.search(says, error.cause)
    assert error.lever


def _paths(value, at=()):
    yield at
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _paths(each, (*at, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _paths(each, (*at, index))
