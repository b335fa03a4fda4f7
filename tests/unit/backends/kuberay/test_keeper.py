"""The time to live of a cluster on Kubernetes, kept by the cluster itself."""

from __future__ import annotations

import http.client

import pytest

from airflow_raytpu.backends.kuberay import life, naming
from airflow_raytpu.backends.kuberay.keeper import HEARTBEAT, TTL, Keeper
from tests.doubles.kubernetes.kinds import crds_folder
from tests.doubles.kubernetes.server import FakeKubernetes

RULES = [{"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "delete"]}]


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def k():
    with FakeKubernetes.in_thread(crds_folder()) as server:
        yield server


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def account(k, tmp_path):
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "token").write_text(k.account("ray-tpu", RULES))
    return tmp_path


@pytest.fixture
def cluster(k):
    group = {"template": {"spec": {"containers": [{"name": "ray", "image": "i"}]}}}
    meta = {"name": "shared", "annotations": {naming.TTL: "300", naming.HEARTBEAT: "1000"}}
    k.put("rayclusters", {"metadata": meta, "spec": {"headGroupSpec": group}})
    return lambda: k.find("rayclusters", "shared")


def test_it_reads_what_the_backend_writes():
    assert (HEARTBEAT, TTL) == (naming.HEARTBEAT, naming.TTL)


def test_a_cluster_lives_as_long_as_somebody_looks(k, account, clock, cluster):
    keeper = Keeper(k.url, account, "shared", clock)
    for beat in range(5):
        k.edit("rayclusters", "shared", life.beat(beat))
        clock.at += 290
        assert keeper.look()
    assert cluster() is not None


def test_it_goes_when_nobody_has_looked_whatever_airflows_clock_says(k, account, clock, cluster, capsys):
    keeper = Keeper(k.url, account, "shared", clock)
    assert keeper.look()
    clock.at += 299
    assert keeper.look()
    assert cluster() is not None
    clock.at += 2
    assert keeper.look()
    assert cluster() is None
    assert "301 s" in capsys.readouterr().out
    assert not keeper.look()


def test_another_cluster_of_its_name_is_left_alone(k, account, clock, cluster, monkeypatch):
    keeper = Keeper(k.url, account, "shared", clock)
    keeper.look()
    clock.at += 400
    ask = keeper._ask

    def made_anew(method, body=None):
        if method == "DELETE":
            found = cluster()
            k.remove("rayclusters", "shared")
            k.put("rayclusters", {"metadata": {"name": "shared"}, "spec": found["spec"]})
        return ask(method, body)

    monkeypatch.setattr(keeper, "_ask", made_anew)
    keeper.look()
    assert cluster() is not None


def test_a_token_that_is_replaced_is_read_again_and_trouble_is_said_once(k, account, clock, cluster, capsys):
    good = (account / "token").read_text()
    (account / "token").write_text("old")
    keeper = Keeper(k.url, account, "shared", clock)
    assert all(keeper.look() for _ in range(3))
    assert capsys.readouterr().err.count("401") == 1
    (account / "token").write_text(good)
    keeper.look()
    clock.at += 301
    keeper.look()
    assert cluster() is None


def test_a_cluster_without_a_time_to_live_is_kept(k, account, clock, cluster):
    k.edit("rayclusters", "shared", {"metadata": {"annotations": {naming.TTL: None}}})
    keeper = Keeper(k.url, account, "shared", clock)
    keeper.look()
    clock.at += 1e6
    keeper.look()
    assert cluster() is not None


def test_a_look_that_comes_with_the_end_keeps_the_cluster(k, account, clock, cluster, monkeypatch):
    keeper = Keeper(k.url, account, "shared", clock)
    keeper.look()
    clock.at += 400
    ask = keeper._ask

    def beaten(method, body=None):
        if method == "DELETE":
            k.edit("rayclusters", "shared", life.beat(2000))
        return ask(method, body)

    monkeypatch.setattr(keeper, "_ask", beaten)
    assert keeper.look()
    assert cluster() is not None
    clock.at += 290
    assert keeper.look()
    assert cluster() is not None, "the look counts from when it came"


@pytest.mark.parametrize("missing", ["namespace", "token"])
def test_a_pod_without_an_account_keeps_its_head(k, account, clock, cluster, missing, capsys):
    """A container that ends makes the head look broken, and with the autoscaler it is not started again."""
    (account / missing).unlink()
    keeper = Keeper(k.url, account, "shared", clock)
    clock.at += 400
    assert keeper.look()
    assert "FileNotFoundError" in capsys.readouterr().err
    assert cluster() is not None


def test_an_answer_cut_short_is_tried_again(account, clock, monkeypatch, capsys):
    def cut(*_, **__):
        raise http.client.IncompleteRead(b"{")

    monkeypatch.setattr("urllib.request.urlopen", cut)
    assert Keeper("http://localhost", account, "shared", clock).look()
    assert "IncompleteRead" in capsys.readouterr().err
