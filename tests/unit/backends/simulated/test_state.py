from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import state
from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.backends.simulated.state import Arrivals, Host, Phase, Record, Slice
from airflow_raytpu.model.errors import ClusterError

HOSTS = tuple(Host(worker_id=worker, ip=f"127.16.0.{worker + 10}") for worker in range(4))
RECORD = Record(
    name="etl-cluster-abcdefgh",
    uid="u1",
    owner="d|etl|cluster|run|-1|1",
    identity={"deployment": "d"},
    slice="v6e:4x4",
    also=("v6e:2x2",),
    ttl_s=300.0,
    created_at=1.0,
    token_path="/tmp/token",
    phase=Phase.READY,
    supervisor=ProcessId(pid=7, began="boot:3"),
    address="127.16.0.1:20001",
    dashboard="http://127.0.0.1:20002",
    endpoint="http://127.0.0.1:20003",
    slices=(Slice(name="etl-cluster-0", shape="v6e:4x4", chips_per_host=4, hosts=HOSTS),),
    detail="",
)


def test_it_survives_writing_and_reading(tmp_path: Path) -> None:
    record = RECORD.with_host(0, 2, launcher=ProcessId(pid=9, began="boot:4"), raylet=10)
    record = replace(record, arrivals=Arrivals(heal_s=2.5, late=None, late_s=7.0)).with_slice(0, awaited="is late")
    state.write(tmp_path, record)
    assert state.read(tmp_path) == record
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_cluster_that_never_was_is_none(tmp_path: Path) -> None:
    assert state.read(tmp_path / "cluster") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"phase": "ready"}', '{"phase": "asleep"}', "\x00\x01"])
def test_a_file_that_is_something_else_is_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ClusterError, match=str(tmp_path)):
        state.read(tmp_path)


def test_a_newer_versions_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({**RECORD.to_dict(), "moons": 2}))
    with pytest.raises(ClusterError, match="moons"):
        state.read(tmp_path)


def test_a_folder_that_is_no_cluster_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no state\.json"):
        state.read(tmp_path)


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cluster").touch()
    with pytest.raises(ClusterError, match="cluster"):
        state.read(tmp_path / "cluster")


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="RAYTPU_SIM_ROOT"):
        state.write(tmp_path / "absent", RECORD)


def test_facts_are_what_a_ready_cluster_offers() -> None:
    assert RECORD.facts() == {
        "name": "etl-cluster-abcdefgh",
        "address": "127.16.0.1:20001",
        "dashboard": "http://127.0.0.1:20002",
        "endpoint": "http://127.0.0.1:20003",
        "slices": [{"name": "etl-cluster-0", "hosts": 4, "chips": 16, "whole": True}],
    }


def test_a_lost_host_breaks_its_slice_and_no_other() -> None:
    two = replace(RECORD, slices=(*RECORD.slices, replace(RECORD.slices[0], name="etl-cluster-1")))
    broken = two.with_host(1, 2, alive=False)
    assert [part.whole for part in broken.slices] == [True, False]
    assert broken.slices[1].fault == "slice etl-cluster-1 lost host 2 of 4"
    assert broken.slices[0].fault == ""


def test_a_slice_that_will_come_says_why_it_is_not_there() -> None:
    coming = RECORD.with_host(0, 2, alive=False).with_slice(0, awaited="is made anew").slices[0]
    assert (coming.whole, coming.fault) == (False, "slice etl-cluster-0 is made anew")


@pytest.mark.parametrize(
    ("heal", "late", "arrivals"),
    [
        ("", "", Arrivals(heal_s=state.HEAL_S)),
        ("2.5", "", Arrivals(heal_s=2.5)),
        ("0", "30", Arrivals(heal_s=0.0, late=None, late_s=30.0)),
        ("never", "never", Arrivals(heal_s=None, late=None, late_s=None)),
    ],
)
def test_how_slices_come_may_be_said_in_the_environment(heal: str, late: str, arrivals: Arrivals) -> None:
    assert Arrivals.of({"RAYTPU_SIM_HEAL_S": heal, "RAYTPU_SIM_LATE_S": late}) == arrivals


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "10s"])
@pytest.mark.parametrize("name", ["RAYTPU_SIM_HEAL_S", "RAYTPU_SIM_LATE_S"])
def test_what_is_no_time_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ClusterError, match=name):
        Arrivals.of({name: text})
