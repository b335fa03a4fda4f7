"""Clusters as folders, without any Ray: the supervisor is never started here, or is a stand-in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import cluster, state
from airflow_raytpu.backends.simulated.cluster import Cluster
from airflow_raytpu.backends.simulated.processes import MARK, NODES, ProcessId
from airflow_raytpu.backends.simulated.state import Arrivals, Phase
from airflow_raytpu.model.errors import ClusterError, ForeignObjectError, SliceShapeError
from airflow_raytpu.model.identity import Identity
from tests.simulated_cluster import cluster_request, wait_for

REQUEST = cluster_request("cluster", "v6e:2x2")
SUPERVISOR = """
import signal, sys
from pathlib import Path
from airflow_raytpu.backends.simulated import cluster
from airflow_raytpu.backends.simulated.claims import folder_claim
folder = Path(sys.argv[1])
held = folder_claim(folder)
signal.signal(signal.SIGTERM, lambda *_: (cluster.discard(folder), sys.exit()))
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    calls: list[Cluster] = []
    monkeypatch.setattr(cluster, "_spawn", calls.append)
    return calls


@pytest.fixture
def root(short_path: Path) -> Path:
    return cluster.root_folder(short_path / "root")


@pytest.fixture
def dead() -> ProcessId:
    return ProcessId(pid=2**22 - 1, began="boot:1")


def change(found: Cluster, **changes: object) -> Cluster:
    record = replace(found.record, **changes)  # type: ignore[arg-type]
    state.write(found.folder, record)
    return Cluster(found.folder, record)


def test_the_root_is_private(short_path: Path) -> None:
    made = cluster.root_folder(short_path / "root")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert cluster.root_folder(made) == made


def test_the_root_may_be_said_in_the_environment(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTPU_SIM_ROOT", str(short_path / "said"))
    assert cluster.root_folder() == short_path / "said"
    monkeypatch.delenv("RAYTPU_SIM_ROOT")
    assert cluster.root_folder() == Path(f"/tmp/raytpu-{os.getuid()}")


def test_a_root_that_others_can_write_is_refused(short_path: Path) -> None:
    short_path.chmod(0o777)
    with pytest.raises(ClusterError, match="RAYTPU_SIM_ROOT"):
        cluster.root_folder(short_path)


def test_a_root_that_is_a_link_or_a_file_is_refused(short_path: Path) -> None:
    (short_path / "link").symlink_to(short_path)
    (short_path / "file").touch()
    for path in (short_path / "link", short_path / "file", short_path / "file" / "below"):
        with pytest.raises(ClusterError, match="RAYTPU_SIM_ROOT"):
            cluster.root_folder(path)


def test_a_cluster_is_a_private_folder_with_all_it_needs(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST)
    assert found.folder == root / REQUEST.name
    assert len(found.token()) == 64
    assert stat.S_IMODE((found.folder / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(found.folder.stat().st_mode) == 0o700
    assert found.record.owner == REQUEST.identity.owner()
    assert found.token() not in (found.folder / "state.json").read_text()
    assert [each.record.uid for each in spawned] == [found.record.uid]
    assert [path.name for path in root.iterdir()] == [REQUEST.name]


def test_how_slices_come_is_in_the_record_and_by_default_a_lost_one_comes_back(
    root: Path, spawned: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.start(root, REQUEST).record.arrivals == Arrivals(heal_s=state.HEAL_S)
    monkeypatch.setenv("RAYTPU_SIM_HEAL_S", "never")
    others = [cluster_request(name, "v6e:2x2") for name in ("said", "given")]
    assert cluster.start(root, others[0]).record.arrivals == Arrivals(heal_s=None)
    given = Arrivals(heal_s=1.0, late=1)
    assert cluster.start(root, others[1], arrivals=given).record.arrivals == given


def test_the_same_owner_adopts(root: Path, spawned: list[Cluster]) -> None:
    first = cluster.start(root, REQUEST)
    second = cluster.start(root, replace(REQUEST, ttl_s=999.0))
    assert second.record == first.record


def test_further_slices_are_written_down_in_canonical_form(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST, also=["TPU-V6E 4x4", "v6e:2x4@ct6e-standard-8t"])
    assert found.record.also == ("v6e:4x4", "v6e:2x4@ct6e-standard-8t")
    assert state.read(found.folder) == found.record


def test_a_further_slice_that_does_not_exist_is_refused_before_anything_is_made(
    root: Path, spawned: list[Cluster]
) -> None:
    with pytest.raises(SliceShapeError, match="4x5"):
        cluster.start(root, REQUEST, also=["v6e:4x5"])
    assert list(root.iterdir()) == []


def test_a_supervisor_is_started_until_one_has_registered(root: Path, spawned: list[Cluster]) -> None:
    cluster.start(root, REQUEST)
    found = cluster.start(root, REQUEST)
    assert len(spawned) == 2
    change(found, supervisor=ProcessId.own())
    cluster.start(root, REQUEST)
    assert len(spawned) == 2


def test_another_owner_is_refused_and_both_are_named(
    root: Path, spawned: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Identity, "remote_name", lambda self, limit=41: "same-name")
    cluster.start(root, REQUEST)
    other = cluster_request("other", "v6e:2x2")
    with pytest.raises(ForeignObjectError, match=r"cluster.*other"):
        cluster.start(root, other)


def test_a_cluster_whose_supervisor_died_is_made_anew(root: Path, spawned: list[Cluster], dead: ProcessId) -> None:
    first = change(cluster.start(root, REQUEST), supervisor=dead, phase=Phase.READY)
    assert "died" in first.lost
    second = cluster.start(root, REQUEST)
    assert second.record.uid != first.record.uid
    assert second.record.phase is Phase.STARTING


def test_many_at_once_make_one(root: Path, spawned: list[Cluster]) -> None:
    found: list[str] = []
    barrier = threading.Barrier(8)

    def create() -> None:
        barrier.wait()
        found.append(cluster.start(root, REQUEST).record.uid)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in root.iterdir()] == [REQUEST.name]


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(short_path: Path) -> None:
    root = cluster.root_folder(short_path / ("x" * 60))
    with pytest.raises(ClusterError, match="RAYTPU_SIM_ROOT"):
        cluster.start(root, REQUEST)
    assert list(root.iterdir()) == []


def test_without_ray_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'airflow-raytpu\[local\]'"):
        cluster.start(root, REQUEST)
    assert list(root.iterdir()) == []


def test_a_foreign_folder_is_not_touched(root: Path, spawned: list[Cluster]) -> None:
    (root / REQUEST.name).mkdir()
    (root / REQUEST.name / "thesis.txt").touch()
    with pytest.raises(ClusterError, match=r"no state\.json"):
        cluster.start(root, REQUEST)
    assert cluster.sweep(root) == []
    assert (root / REQUEST.name / "thesis.txt").exists()
    assert spawned == []


def test_a_sign_of_life_is_a_newer_time(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST)
    os.utime(found.folder / "heartbeat", (1, 1))
    found.beat()
    assert time.time() - (found.folder / "heartbeat").stat().st_mtime < 60
    cluster.discard(found.folder)
    found.beat()
    found.note_submitted("job", "me")
    assert list(root.iterdir()) == []


def test_what_was_submitted_is_remembered_with_its_owner(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST)
    assert found.submitter("job") == ""
    found.note_submitted("job", "me")
    assert found.submitter("job") == "me"


@pytest.fixture
def supervised(root: Path, spawned: list[Cluster]) -> Iterator[tuple[Cluster, subprocess.Popen[str]]]:
    found = cluster.start(root, REQUEST)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(found.folder)], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "up\n"
        yield change(found, supervisor=ProcessId.of(supervisor.pid), phase=Phase.READY), supervisor
        supervisor.kill()


def test_removing_asks_the_supervisor(supervised: tuple[Cluster, subprocess.Popen[str]]) -> None:
    found, supervisor = supervised
    cluster.remove(found)
    assert not found.folder.exists()
    assert supervisor.wait(10) == 0


def test_removing_makes_a_supervisor_that_hangs(supervised: tuple[Cluster, subprocess.Popen[str]]) -> None:
    found, supervisor = supervised
    os.kill(supervisor.pid, 19)
    cluster.remove(found, within_s=0.1)
    assert not found.folder.exists()
    assert supervisor.wait(10) == -9


def test_removing_what_is_gone_is_no_error(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST)
    cluster.remove(found)
    cluster.remove(found)
    assert list(root.iterdir()) == []


def test_removing_spares_a_newer_cluster_of_the_same_name(root: Path, spawned: list[Cluster]) -> None:
    former = cluster.start(root, REQUEST)
    cluster.remove(former)
    newer = cluster.start(root, REQUEST)
    cluster.remove(former)
    assert cluster.attach(root, REQUEST.name) == newer


def test_sweeping_takes_the_dead_and_what_is_left_of_them(root: Path, spawned: list[Cluster], dead: ProcessId) -> None:
    found = change(cluster.start(root, REQUEST), supervisor=dead, phase=Phase.READY)
    (found.folder / NODES).mkdir()
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: found.record.uid}) as left:
        assert cluster.sweep(root) == [REQUEST.name]
        assert left.wait(10) == -9
    assert list(root.iterdir()) == []


def test_sweeping_spares_the_living_and_the_young(root: Path, spawned: list[Cluster]) -> None:
    young = cluster.start(root, REQUEST)
    living = change(cluster.start(root, cluster_request("living", "v6e:2x2")), supervisor=ProcessId.own())
    assert cluster.sweep(root) == []
    os.utime(young.folder / "heartbeat", (1, 1))
    os.utime(living.folder / "heartbeat", (1, 1))
    assert cluster.sweep(root) == [REQUEST.name]


def test_a_failed_cluster_can_be_read_for_its_ttl(root: Path, spawned: list[Cluster], dead: ProcessId) -> None:
    found = change(cluster.start(root, REQUEST), supervisor=dead, phase=Phase.FAILED, detail="why")
    assert found.lost == ""
    assert cluster.sweep(root) == []
    os.utime(found.folder / "heartbeat", (1, 1))
    assert cluster.sweep(root) == [REQUEST.name]


def test_sweeping_passes_over_what_it_cannot_read(root: Path, spawned: list[Cluster]) -> None:
    found = cluster.start(root, REQUEST)
    (found.folder / "state.json").write_text("{")
    (root / "note.txt").touch()
    (root / ".trash-x").mkdir()
    assert cluster.sweep(root) == []
    assert sorted(path.name for path in root.iterdir()) == ["note.txt", REQUEST.name]


@pytest.mark.parametrize(
    ("name", "short"),
    [("etl-train-abcdefgh", "etl-train"), ("cluster", "cluster"), ("a" * 32 + "-abcdefgh", "a" * 24)],
)
def test_slices_are_called_after_their_cluster(name: str, short: str) -> None:
    assert cluster.short_name(name) == short


def test_the_claim_of_a_supervisor_that_ended_is_free_at_once(
    supervised: tuple[Cluster, subprocess.Popen[str]],
) -> None:
    found, supervisor = supervised
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: found.lost)
    cluster.remove(found)
    assert not found.folder.exists()


def test_an_interpreter_in_a_path_with_a_space_gets_a_name_without_one(tmp_path, monkeypatch):
    prefix = tmp_path / "my clone" / ".venv"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").touch()
    monkeypatch.setattr(cluster.sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(cluster.sys, "prefix", str(prefix))
    for _ in range(2):
        name = cluster._interpreter(tmp_path)
        assert " " not in name
        assert (tmp_path / "venv" / "bin" / "python").samefile(prefix / "bin" / "python")
