"""Which of several hosts' errors is told, in whatever order they arrive. Ray's answers come from a list."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray

from airflow_raytpu.model.errors import LostError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import hosts
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host

HELD = ReservedSlice(plan(TpuSlice.parse("v6e:4x4")), None, tuple(Host(n, f"n{n}", "s", n) for n in range(4)))


def raised(cause, at, **more):
    """As Ray hands over what a host's process raised."""
    error = AuthorError(cause, "", at, **more)
    return ray.exceptions.RayTaskError("run", "", error)


DIED = ray.exceptions.ActorDiedError()


class Answers:
    """Stands for ray: host *rank* answers *when* seconds after the start, with a value or an error."""

    exceptions = ray.exceptions

    def __init__(self, **answers):
        self.now = 0.0
        self.answers = {int(name[1:]): answer for name, answer in answers.items()}

    def time(self):
        return self.now

    def wait(self, references, num_returns, timeout):
        due = [(self.answers[rank][0], rank) for rank in references if rank in self.answers]
        when, rank = min(due, default=(1e9, None))
        if when > self.now + timeout:
            self.now += timeout
            return [], references
        self.now = max(self.now, when)
        return [rank], []

    def get(self, rank):
        answer = self.answers[rank][1]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def run(monkeypatch):
    def run(**answers):
        double = Answers(**answers)
        monkeypatch.setattr(hosts, "ray", double)
        monkeypatch.setattr(hosts, "time", double)
        crew = hosts.Hosts("r", HELD)
        crew._actors = [None] * 4
        crew._running = {rank: rank for rank in range(4)}
        while not crew.wait(0.5):
            pass
        return SimpleNamespace(values=crew.values, at=double.now)

    return run


def test_the_values_come_by_rank(run):
    assert run(h0=(4, "a"), h1=(3, "b"), h2=(2, "c"), h3=(1, "d")).values == ["a", "b", "c", "d"]


def test_the_first_that_happened_is_told_though_another_came_first(run):
    with pytest.raises(AuthorError, match="cause"):
        run(h0=(10, raised("effect", 9.9)), h2=(11, raised("cause", 9.5)))


def test_a_loss_that_shows_late_is_told_and_not_its_echoes(run):
    with pytest.raises(LostError, match="host 3 of slice s was lost"):
        run(h0=(10, raised("abort", 9, collateral=True)), h1=(10, raised("abort", 9, collateral=True)), h3=(19, DIED))


def test_an_error_of_the_authors_is_told_though_a_host_went_down_with_it(run):
    with pytest.raises(AuthorError, match="own"):
        run(h1=(5, DIED), h2=(6, raised("own", 4)))


def test_an_echo_with_nothing_behind_it_is_told_in_the_end(run):
    with pytest.raises(AuthorError, match="abort"):
        run(h0=(10, raised("abort", 9, collateral=True)))
