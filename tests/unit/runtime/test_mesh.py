"""JAX on one host: what is left of an earlier slice before it, and what proves the whole mesh after it."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import BrokenSliceError, LostError
from airflow_raytpu.runtime import mesh


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("NPROC", "1")


def jax_sees(monkeypatch, processes, devices, backend="cpu"):
    seen = SimpleNamespace(
        process_count=lambda: processes, devices=lambda: range(devices), default_backend=lambda: backend
    )
    monkeypatch.setitem(sys.modules, "jax", seen)


def test_what_an_earlier_job_of_several_slices_left_behind_is_gone(monkeypatch):
    for name, value in {"NUM_SLICES": "3", "SLICE_ID": "2", "COORDINATOR_ADDRESS": "10.0.0.9"}.items():
        monkeypatch.setenv(f"MEGASCALE_{name}", value)
    mesh.prepare()
    assert not [name for name in os.environ if name.startswith("MEGASCALE_")]


def test_a_whole_mesh_is_left_alone(monkeypatch):
    jax_sees(monkeypatch, 4, 16)
    mesh.check(4, 16)


@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (4, 15), (1, 16)])
def test_a_worker_that_would_train_alone_or_with_too_few_is_refused(monkeypatch, processes, devices):
    jax_sees(monkeypatch, processes, devices)
    with pytest.raises(BrokenSliceError, match=f"{processes} processes and {devices} devices .* has 4 and 16"):
        mesh.check(4, 16)


def test_chips_that_somebody_else_holds_are_not_taken_for_a_slow_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    jax_sees(monkeypatch, 4, 16)
    with pytest.raises(BrokenSliceError, match="runs on cpu"):
        mesh.check(4, 16)


class Board(dict):
    """A board of words that stay."""

    def say(self, topic, word):
        self[topic] = word

    heard = dict.get


def test_hosts_that_reach_one_another_go_on():
    met = threading.Event()
    mesh.prove(Board(), 0, 4, met.set)
    assert met.is_set()


@pytest.mark.parametrize(
    ("came", "who"), [((0, 1, 3), "rank 2 never came to it"), ((0, 1, 2, 3), "all hosts came to it")]
)
def test_hosts_that_do_not_are_told_by_their_ranks(came, who):
    board, never = Board({f"mesh {rank}": {} for rank in came}), threading.Event()
    with pytest.raises(LostError, match=f"over 4 hosts hangs after 0 s: {who}"):
        mesh.prove(board, 0, 4, never.wait, within_s=0.0)
    never.set()


def test_a_first_collective_that_fails_says_on_which_host(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    with pytest.raises(LostError, match=r"failed on host 3, .*: connection refused"):
        mesh.prove(Board(), 3, 4, lambda: (_ for _ in ()).throw(ConnectionError("connection refused")))
