"""Preflight: every code is found where it should be, nowhere else, and is written down."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu import Deadlines
from airflow_raytpu.model import errors
from airflow_raytpu.model.request import Kind
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.findings import Finding, Level, span
from airflow_raytpu.placement.intent import Intent, Provisioning, Serving, Supply
from airflow_raytpu.placement.preflight import CODES, preflight, refuse

PAGE = (Path(__file__).parents[3] / "docs" / "preflight.md").read_text()
SPOT = Provisioning.SPOT
ERROR, WARNING, NOTE = Level.ERROR, Level.WARNING, Level.NOTE


def ask(kind=Kind.TRAIN, **more):
    return Intent(kind=kind, dag_id="d", task_id="t", **{"slice": "v6e:4x4", **more})


def serve(**more):
    return ask(Kind.SERVE, serving=Serving(**{"smoke": 1, **more}))


def limits(**minutes):
    return Deadlines(**{name: timedelta(minutes=value) for name, value in minutes.items()})


CASES = [
    ("RT110", ERROR, ask(slice="v6e:4x5"), "v6e has no topology 4x5"),
    ("RT110", ERROR, ask(slice="v6e:2x4"), "can be read in two ways"),
    ("RT110", ERROR, ask(slice=None, cluster_slice="v9:1"), "is not a slice"),
    ("RT111", ERROR, ask(slice="v6e:2x2*2"), "only where each has several hosts"),
    ("RT112", NOTE, ask(Kind.CLUSTER, slice="tpu7x:4x12x16"), "what asks Ray for such a slice is refused"),
    ("RT112", WARNING, ask(Kind.SERVE, slice="tpu7x:4x12x16", serving=Serving(smoke=1)), "Ray 2.60 does not know"),
    ("RT113", WARNING, ask(deadlines=limits(slice_wait=50, start=20, stall=5, total=60)), "leaves less than start"),
    ("RT113", WARNING, ask(execution_timeout_s=600), "execution_timeout (10 min) ends the task"),
    ("RT113", WARNING, serve(deadline_s=2 * 86400), "The rollout may take 2 d"),
    ("RT114", WARNING, ask(supply=Supply(provisioning=SPOT, save_s=41)), "Spot gives 30 s; a save takes 41 s."),
    ("RT114", WARNING, ask(supply=Supply(provisioning=SPOT, grace_s=600)), "grace of 10 min is not given on spot"),
    ("RT114", WARNING, ask(supply=Supply(grace_s=60, save_s=90)), "A pod is given 60 s"),
    ("RT115", WARNING, ask(Kind.CLUSTER, slice="v4:16x16x16"), "only its tools make it"),
    ("RT116", NOTE, ask(Kind.CLUSTER, slice="v6e:2x4@4t"), "for 1 host of 8 chips"),
    ("RT116", WARNING, ask(Kind.SERVE, slice="v6e:2x4@4t", serving=Serving(smoke=1)), "for 1 host of 8 chips"),
    ("RT117", NOTE, ask(Kind.CLUSTER, slice="v5p:4x4x16"), "4x4x16 and 4x8x8 share the pod type v5p-512"),
    ("RT118", ERROR, ask(slice="v6e:2x2", cluster_slice="v6e:4x4"), "on a cluster of v6e:4x4"),
    ("RT118", ERROR, ask(slice="v6e:2x2/4x4"), "no cluster is made of parts"),
    ("RT118", ERROR, ask(slice="v6e:2x2/4x4", cluster_slice="v6e:4x8"), "on a cluster of v6e:4x8"),
    ("RT119", NOTE, ask(slice="v6e:4x4*11"), "number 10 comes before number 2"),
    ("RT120", ERROR, ask(slice=None, placed=False), "Neither cluster nor slice"),
    ("RT120", ERROR, Intent(kind=Kind.SERVE, placed=False), "outlives its task"),
    ("RT121", ERROR, ask(cluster="Shared_1"), "cannot be a cluster's name"),
    ("RT121", ERROR, ask(cluster="c" * 42), "has 42 characters"),
    ("RT121", ERROR, ask(supply=Supply(groups=("-x",))), "cannot be a worker group's name"),
    ("RT122", ERROR, ask(addresses={"input": "s3://b/x"}), "'s3://b/x' is not a storage address"),
    ("RT123", ERROR, ask(batches={"batch_size": 100}), "does not divide over 16 chips"),
    ("RT123", ERROR, ask(slice=None, batches={"batch_size": "many"}), "not a number"),
    ("RT124", ERROR, ask(ragged="trim"), "ragged is 'trim'"),
    ("RT124", WARNING, ask(ragged="drop"), "out of the output"),
    ("RT124", NOTE, ask(ragged="raise"), "refuses an input"),
    ("RT125", ERROR, ask(resume="maybe"), "resume is 'maybe'"),
    ("RT126", ERROR, serve(route_prefix="x"), "route_prefix is 'x'"),
    ("RT127", WARNING, serve(smoke=0), "No smoke request"),
    ("RT128", WARNING, serve(second_cluster=True), "16 more chips while both run"),
    ("RT129", ERROR, serve(model_chips=16), "spans 16 chips, more than the 4 of a host"),
    ("RT130", ERROR, ask(supply=Supply(queue="q", groups=("head",))), "no worker group called head"),
    ("RT130", ERROR, ask(supply=Supply(queue="q", groups=tuple("abcdefghijklmnopq"))), "18 worker groups"),
    ("RT130", ERROR, ask(supply=Supply(queue="q", autoscaling=True)), "elastic-job"),
    ("RT130", ERROR, ask(supply=Supply(queue="Q_1")), "no name of a Kueue queue"),
    ("RT131", ERROR, ask(supply=Supply(run_limit_s=60)), "GKE takes 10 min to 7 d"),
    ("RT131", WARNING, ask(supply=Supply(run_limit_s=3600)), "taken away after 1 h, before total (24 h)"),
    ("RT132", NOTE, ask(slice=None, open=("slice",)), "known only when the task runs"),
    ("RT133", ERROR, ask(ttl_s=0), "given back at once"),
    ("RT133", WARNING, ask(ttl_s=30), "ttl is 30 s"),
    ("RT135", WARNING, ask(jax_at_top="digits/train.py:3"), "digits/train.py:3 imports jax as soon as"),
    ("RT137", ERROR, ask(elastic=(2, 1)), "elastic is (2, 1), which is no range from 1 on"),
    ("RT137", ERROR, ask(elastic=2), "elastic is 2, which is no pair of whole numbers"),
    ("RT137", ERROR, ask(slice="v6e:4x4*3", elastic=(1, 2)), "slice asks for 3 slices, and elastic for 1 to 2"),
    ("RT111", ERROR, ask(slice="v6e:2x2", elastic=(1, 2), batches={"rows": 4}), "only where each has several hosts"),
    ("RT110", ERROR, ask(slice="v6e:2x4/4x4", cluster="c", elastic=(1, 2)), "asks for 2 parts of slices"),
    ("RT118", ERROR, ask(slice=None, cluster_slice="v6e:4x4", elastic=(1, 2)), "2 slices on a cluster of 1"),
    (
        "RT123",
        ERROR,
        ask(elastic=(1, 3), batches={"global_batch_size": 32}),
        "With 3 of 1 to 3 slices: global_batch_size is 32, which does not divide over 48 chips",
    ),
    ("RT136", ERROR, ask(on_nan="hope"), "on_nan is 'hope'"),
    ("RT136", ERROR, ask(on_nan="roll_back", failures=0), "at the cost of RetryBudget.failures, which is 0"),
    ("RT138", ERROR, ask(not_json="train_loop_config['m'] is a Model"), "train_loop_config['m'] is a Model, and goes"),
    ("RT134", NOTE, Intent(kind=Kind.TRAIN, slice="v6e:4x4", dag_id="d" * 20, task_id="t" * 20), "first 26 characters"),
]


@pytest.mark.parametrize(("code", "level", "intent", "says"), CASES, ids=[f"{c[0]}-{c[1].value}" for c in CASES])
def test_it_is_found_once_and_told_with_its_lever(code, level, intent, says):
    found = [finding for finding in preflight(intent) if finding.code == code]
    assert [finding.level for finding in found] == [level]
    assert says in str(found[0])
    assert found[0].fact == f"docs/preflight.md#{code.lower()}"
    if level is ERROR:
        assert found[0].lever
        with pytest.raises(errors.RequestError):
            refuse(found)
    else:
        refuse(found)


@pytest.mark.parametrize(
    "intent",
    [
        ask(),
        ask(Kind.CLUSTER),
        ask(slice=None, cluster_slice="v6e:4x4", cluster=None),
        ask(Kind.INFERENCE, ragged="pad", batches={"batch_size": "32"}, addresses={"input": "gs://b/x", "out": "/x"}),
        ask(resume="never", supply=Supply(queue="q", autoscaling=True, elastic=True, groups=("load",))),
        ask(supply=Supply(provisioning=SPOT, save_s=20), cluster="c" * 41),
        ask(slice="v6e:2x2", cluster="c" * 53),
        ask(slice="v6e:2x4/4x4", cluster="shared"),
        ask(slice="v6e:2x4/4x4", cluster_slice="v6e:4x4*2"),
        ask(slice=None, cluster_slice="v6e:2x4*2@4t"),
        serve(route_prefix="/", model_chips=16, model_topology="4x4"),
        serve(model_chips=4),
        ask(execution_timeout_s=86400, ttl_s=60),
        ask(elastic=[1, 2], batches={"global_batch_size": 64}),
        ask(slice="v6e:4x4*2", elastic=(2, 2), cluster_slice="v6e:4x4*3"),
        ask(slice=None, cluster_slice="v6e:4x4*3", elastic=(1, 2)),
    ],
)
def test_what_is_right_is_left_alone(intent):
    assert preflight(intent) == []


def test_errors_come_first_and_the_first_is_raised_in_its_own_class():
    found = preflight(ask(slice="tpu7x:4x4x4", ragged="drop", batches={"batch_size": 100}, ttl_s=1))
    assert [finding.level for finding in found] == [ERROR, WARNING, WARNING]
    with pytest.raises(errors.BatchSizeError, match="Use a multiple of 64: 64 or 128"):
        refuse(found)


@pytest.mark.parametrize(
    ("intent", "kind"),
    [
        (ask(slice="v6e:4x5"), errors.SliceShapeError),
        (ask(slice="v6e:2x2*2"), errors.SliceShapeError),
        (ask(addresses={"input": "x"}), errors.PathError),
        (ask(ttl_s=0), errors.DeadlineError),
        (ask(resume="x"), errors.RequestError),
    ],
)
def test_an_error_keeps_its_class_and_number(intent, kind):
    with pytest.raises(kind) as caught:
        refuse(preflight(intent))
    assert type(caught.value) is kind
    assert f"[{kind.code}]" in str(caught.value)


@pytest.mark.parametrize("row", catalogue.shapes(), ids=lambda row: f"{row.generation.name}-{row.topology}")
@pytest.mark.parametrize("kind", [Kind.TRAIN, Kind.INFERENCE])
def test_no_shape_of_gke_is_refused_for_what_ray_thinks_of_it(row, kind):
    text = f"{row.generation.name}:{row.topology}@{row.machine_type}"
    assert {finding.code for finding in preflight(ask(kind, slice=text))} <= {"RT115"}


@given(
    st.builds(
        Intent,
        kind=st.sampled_from(Kind),
        dag_id=st.text(max_size=40),
        task_id=st.text(max_size=40),
        slice=st.none() | st.text(max_size=20) | st.sampled_from(["v6e:4x4", "v6e:2x4@4t", "v5p:4x8x8", "tpu7x:1x1x1"]),
        cluster_slice=st.none() | st.sampled_from(["v6e:4x4", "v6e:2x4*2@4t", "nothing"]),
        cluster=st.none() | st.text(max_size=60),
        ttl_s=st.floats(allow_nan=False),
        addresses=st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=2),
        batches=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.floats(), max_size=2),
        ragged=st.none() | st.text(max_size=5),
        resume=st.none() | st.text(max_size=5),
        elastic=st.none() | st.text(max_size=2) | st.tuples(st.integers(-1, 3), st.integers(0, 9)),
    )
)
def test_any_request_is_answered(intent):
    for finding in preflight(intent):
        assert isinstance(finding, Finding)
        assert finding.code in CODES
        assert finding.cause


def test_every_code_has_a_case_here():
    assert {case[0] for case in CASES} == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_written_down(code):
    row = rf'^\| <a id="{code.lower()}"></a>{code} \| [^|]+ \| [^|]{{20,}} \| [^|]{{15,}} \| [^|]{{5,}} \|$'
    (found,) = re.findall(row, PAGE, re.MULTILINE)
    levels = {case[1].value for case in CASES if case[0] == code}
    assert {level.value for level in Level if level.value in found.split("|")[2]} == levels


def test_no_code_is_written_down_that_does_not_exist():
    assert set(re.findall(r"\bRT1[1-9]\d\b", PAGE)) == set(CODES)


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 s"), (90, "90 s"), (120, "2 min"), (3600, "1 h"), (86400, "24 h"), (604800, "7 d")]
)
def test_spans(seconds, text):
    assert span(seconds) == text
