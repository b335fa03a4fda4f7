"""Names follow from the identity alone, fit everywhere, and never collide."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.identity import CLUSTER_NAME_LIMIT, JOB_NAME_LIMIT, Identity

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
ids = st.text(min_size=1, max_size=250)
identities = st.builds(
    Identity,
    deployment=ids,
    dag_id=ids,
    task_id=ids,
    run_id=ids,
    map_index=st.integers(-1, 1000),
    attempt=st.integers(1, 99),
)


@given(identities, st.sampled_from([JOB_NAME_LIMIT, CLUSTER_NAME_LIMIT]))
def test_a_name_is_a_dns_label_within_its_limit(identity, limit):
    name = identity.remote_name(limit)
    assert len(name) <= limit
    assert DNS_1035.fullmatch(name)


@given(identities, identities)
def test_two_identities_share_a_name_only_when_equal(one, other):
    assert (one.remote_name() == other.remote_name()) == (one == other)


@given(identities)
def test_an_identity_survives_json(identity):
    assert Identity.from_dict(identity.to_dict()) == identity


@given(identities, st.integers(1, 99))
def test_the_storage_path_is_the_same_for_every_attempt(identity, attempt):
    assert identity.with_attempt(attempt).storage_path() == identity.storage_path()


@given(identities)
def test_a_storage_path_has_no_way_out_of_its_root(identity):
    parts = identity.storage_path().split("/")
    assert len(parts) == (4 if identity.map_index >= 0 else 3)
    assert all(re.fullmatch(r"[A-Za-z0-9_.=+@-]+", part) and part.strip(".") for part in parts)


@pytest.mark.parametrize("field", ["deployment", "dag_id", "task_id", "run_id", "map_index", "attempt"])
def test_every_field_is_part_of_the_name(field):
    base = Identity(deployment="a", dag_id="digits", task_id="train", run_id="r")
    changed = 7 if isinstance(getattr(base, field), int) else "other"
    assert dataclasses.replace(base, **{field: changed}).remote_name() != base.remote_name()


def test_fields_cannot_run_into_one_another():
    one = Identity(deployment="a", dag_id="x", task_id="yz", run_id="r")
    other = Identity(deployment="a", dag_id="xy", task_id="z", run_id="r")
    assert one.remote_name()[-8:] != other.remote_name()[-8:]


def test_the_name_can_be_read():
    identity = Identity(deployment="airflow", dag_id="digits", task_id="train", run_id="scheduled__2026-11-29")
    assert identity.remote_name().startswith("digits-train-")
    assert identity.storage_path() == "digits/train/scheduled__2026-11-29"


@pytest.mark.parametrize("run_id", ["r", "manual__2026-11-29T10:00:00+00:00", "a|b|c", ""])
def test_an_owner_is_read_back(run_id: str) -> None:
    identity = Identity(deployment="d", dag_id="dag", task_id="group.task", run_id=run_id, map_index=3, attempt=2)
    assert Identity.from_owner(identity.owner()) == identity


@pytest.mark.parametrize("text", ["", "me", "a|b|c|d|e", "d|dag|task|run|x|1"])
def test_what_is_no_owner_is_none(text: str) -> None:
    assert Identity.from_owner(text) is None
