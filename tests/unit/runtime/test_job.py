"""How a job's try is watched, on a clock of the test's own; no Ray here. Its tries: ``test_tries.py``."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.errors import LostError, StallTimeout
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import hosts, job, slices
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host

HELD = ReservedSlice(plan(TpuSlice.parse("v6e:4x4")), None, tuple(Host(n, f"n{n}", "s", n) for n in range(4)))


class Clock:
    """Stands for the module ``time``: a sleep only moves it."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(job, "time", clock)
    monkeypatch.setattr(slices, "time", clock)
    return clock


@pytest.fixture
def asked(make_request):
    def make(**arguments):
        given = {"per_host": False, "reserve": True, "failures": 0, "evictions": 0, "env": {}, **arguments}
        return make_request(kind=Kind.JOB, arguments=given)

    return make


def outbox_of(request, clock):
    return Outbox(request, write=lambda uri, value: None, clock=clock.time)


def nodes(*dead):
    return [{"NodeID": f"n{n}", "Alive": n not in dead} for n in range(4)]


def vigil_of(request, clock, seen=nodes, got_on=lambda: None):
    outbox = outbox_of(request, clock)
    outbox.tell(phase="setting up", slice_at=clock.now)
    vigil = job._Vigil(request, outbox, HELD, got_on, seen)
    vigil.begin()
    return vigil, outbox


def news(done):
    return {"done": done, "total": 9, "unit": "row", "metrics": {}}


def verdict(request, outbox, clock):
    seen = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=outbox.latest)
    return judge(seen, request.limits, clock.now)


# --- watching one try --------------------------------------------------------------------------------------------


def test_a_program_that_tells_nothing_is_alive_while_its_process_is(asked, clock):
    request = asked()
    vigil, outbox = vigil_of(request, clock)
    for _ in range(3 * 3600):
        clock.sleep(1)
        assert not vigil.turn({}, answered=False)
        assert verdict(request, outbox, clock).phase is Phase.RUNNING


def test_a_program_that_has_told_its_progress_is_held_to_stall(asked, clock):
    request = asked()
    vigil, outbox = vigil_of(request, clock)
    vigil.turn(news(1), answered=False)
    clock.sleep(600)
    vigil.turn(news(2), answered=False)
    clock.sleep(request.limits.stall_s - 1)
    vigil.turn(news(2), answered=False)
    assert verdict(request, outbox, clock).phase is Phase.RUNNING
    clock.sleep(2)
    assert verdict(request, outbox, clock).code == "RT206"
    with pytest.raises(StallTimeout, match=r"No progress for 901 s \(stall is 900 s\)"):
        vigil.turn(news(2), answered=False)


def test_a_lost_host_of_the_held_slice_ends_the_try_and_is_named(asked, clock):
    dead = []
    vigil, _ = vigil_of(asked(), clock, lambda: nodes(*dead))
    clock.sleep(5)
    assert not vigil.turn({}, answered=False)
    dead.append(2)
    clock.sleep(5)
    with pytest.raises(LostError, match="host 2 of slice s was lost"):
        vigil.turn({}, answered=False)


def test_a_program_that_holds_nothing_sees_to_its_hosts_itself(asked, clock):
    vigil, _ = vigil_of(asked(reserve=False), clock, lambda: nodes(2))
    clock.sleep(5)
    assert not vigil.turn({}, answered=False)


def test_a_loss_that_shows_late_is_waited_for(asked, clock):
    vigil, _ = vigil_of(asked(), clock, lambda: nodes(*([1] if clock.now > 1004 else [])))
    assert vigil.loss() == ""
    assert vigil.loss(10.0) == "host 1 of slice s was lost."


def test_a_program_that_has_returned_and_does_not_end_is_ended(asked, clock):
    vigil, _ = vigil_of(asked(), clock)
    assert not vigil.turn({}, answered=True)
    clock.sleep(29)
    assert not vigil.turn({}, answered=True)
    clock.sleep(2)
    assert vigil.turn({}, answered=True)


@pytest.mark.parametrize(
    ("words", "further"),
    [
        ([], False),
        ([0], False),
        ([500], False),
        ([500, 500], False),
        ([500, 499], False),
        ([500, 499, 500], True),
        ([0, 1], True),
    ],
)
def test_a_program_has_got_on_once_it_is_further_than_its_first_word(asked, clock, words, further):
    heard = []
    vigil, _ = vigil_of(asked(), clock, got_on=lambda: heard.append(1))
    vigil.turn({}, answered=False)
    for done in words:
        vigil.turn(news(done), answered=False)
    assert bool(heard) is further


# --- whose fault it is -------------------------------------------------------------------------------------------

OWN = AuthorError("own", "", 5.0)
EARLIER = AuthorError("earlier", "", 4.0)
ECHO = AuthorError("echo", "", 1.0, collateral=True)
LOST = LostError("host 3 was lost")


@pytest.mark.parametrize(
    ("errors", "to_blame"),
    [
        ({0: OWN, 1: EARLIER}, EARLIER),
        ({0: ECHO, 1: OWN}, OWN),
        ({0: LOST, 1: OWN}, OWN),
        ({0: ECHO, 3: LOST}, LOST),
        ({0: ECHO}, ECHO),
    ],
)
def test_the_first_cause_is_blamed_and_an_echo_only_for_want_of_another(errors, to_blame):
    assert hosts.blame(errors) is to_blame


# --- what it returns ---------------------------------------------------------------------------------------------


def test_the_result_says_what_it_ran_on_and_what_that_cost(asked, clock, monkeypatch):
    request = asked()
    made = job._Job(request, outbox_of(request, clock), HELD.plan)
    made._tries.tally.hold(3600)
    monkeypatch.setattr(made._tries, "run", lambda once: once(HELD))
    monkeypatch.setattr(made, "_on_driver", lambda held: {"x": 1})
    assert made.run() == {
        "value": {"x": 1},
        "hosts": 4,
        "chips": 16,
        "slices": ["s"],
        "chip_hours": 16.0,
        "evictions": 0,
        "failures": 0,
        "causes": [],
    }
