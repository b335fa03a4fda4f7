"""Labels by which whoever knows Airflow's ids finds our objects, and annotations that say whose they are."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.kuberay import naming
from airflow_raytpu.model.identity import Identity
from airflow_raytpu.model.request import Kind
from tests.unit.backends.kuberay.scenarios import IDENTITY, NOW, request


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("digits", "digits"),
        ("Digits_v1.2-x", "Digits_v1.2-x"),
        ("", ""),
        ("x" * 63, "x" * 63),
        ("scheduled__2026-11-29T00:00:00+00:00", "scheduled__2026-11-29T00-00-00-00-00-950e2037"),
    ],
)
def test_what_fits_is_left_alone(text, value):
    assert naming.label_value(text) == value


@pytest.mark.parametrize("text", ["x" * 64, "é", "-x", "x-", "...", "a b", "\x00"])
def test_what_does_not_fit_carries_a_hash(text):
    value = naming.label_value(text)
    assert value != text
    assert 8 <= len(value) <= 63
    assert value[0].isalnum()
    assert value[-1].isalnum()


def test_ids_that_look_alike_are_told_apart():
    texts = ["a:b", "a+b", "a b", "a-b", "x" * 64, "x" * 65]
    assert len({naming.label_value(text) for text in texts}) == len(texts)


def test_every_attempt_is_found_by_airflows_ids():
    ours = naming.owner_labels(IDENTITY)
    for attempt in (1, 2):
        labels = naming.labels(request(identity=IDENTITY.with_attempt(attempt)))
        assert ours.items() < labels.items()
        assert tuple(labels) == naming.LABELS


def test_the_owner_is_exact_whatever_the_ids_are():
    identity = Identity(deployment="a|b", dag_id="c d", task_id="é", run_id="r:+", map_index=3)
    notes = naming.own_annotations(request(Kind.CLUSTER, identity=identity, ttl_s=90.0), NOW)
    assert notes == {
        naming.OWNER: identity.owner(),
        naming.TTL: "90",
        naming.HEARTBEAT: f"{NOW:.0f}",
        naming.SLICE: "v6e:4x4",
    }
    assert naming.owner_of({"metadata": {"annotations": notes}}) == identity.owner()


@pytest.mark.parametrize("item", [{}, {"metadata": None}, {"metadata": {"annotations": None}}, {"metadata": {}}])
def test_somebody_elses_object_has_no_owner_of_ours(item):
    assert naming.owner_of(item) == ""
