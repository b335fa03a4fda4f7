"""How a job's tries are counted and watched, on a clock of the test's own; no Ray here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import LostError, NoSliceError, StallTimeout
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import hosts, job, slices
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.faults import first_line
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


def vigil_of(request, clock, seen=nodes):
    outbox = outbox_of(request, clock)
    outbox.tell(phase="setting up", slice_at=clock.now)
    vigil = job._Vigil(request, outbox, HELD, seen)
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


# --- several tries -----------------------------------------------------------------------------------------------


@pytest.fixture
def run(asked, clock, monkeypatch):
    """A job whose tries end as told; its result, and until when each try waited for its slice."""

    def run(*ends, **arguments):
        left, waits = list(ends), []

        class Tenancy:
            def __init__(self, plan, tell): ...
            def __enter__(self):
                return self

            def __exit__(self, *_): ...
            def take(self, until):
                waits.append(until - clock.now)
                clock.sleep(60)
                return HELD

        def one(self, held):
            clock.sleep(900)
            end = left.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(job, "Tenancy", Tenancy)
        monkeypatch.setattr(job._Job, "_on_driver", one)
        request = asked(**arguments)
        value = job._Job(request, outbox_of(request, clock), HELD.plan).run()
        return SimpleNamespace(value=value, waits=waits, left=left)

    return run


def test_faults_of_the_place_and_of_the_code_are_counted_apart(run):
    done = run(OWN, LOST, LOST, {"x": 1}, failures=1, evictions=2)
    assert done.value == {
        "value": {"x": 1},
        "hosts": 4,
        "chips": 16,
        "slices": ["s"],
        "chip_hours": 16.0,
        "evictions": 2,
        "failures": 1,
        "causes": [
            f"failures 1: {first_line(OWN)}",
            f"evictions 1: {first_line(LOST)}",
            f"evictions 2: {first_line(LOST)}",
        ],
    }


def test_a_second_wait_for_a_slice_has_a_time_of_its_own(run):
    done = run(LOST, LOST, LOST, LOST, LOST, 1, evictions=5)
    # The first counts from the request; those behind it from their own begin, an hour each.
    assert done.waits == [3600.0] * 6


@pytest.mark.parametrize(
    ("ends", "budget", "error"),
    [
        ([OWN], {"evictions": 9}, OWN),
        ([LOST, LOST], {"failures": 9, "evictions": 1}, LOST),
        ([OWN, LOST], {"failures": 1, "evictions": 0}, LOST),
        ([NoSliceError("none")], {"failures": 9, "evictions": 9}, None),
    ],
)
def test_a_budget_that_is_used_up_ends_it(ends, budget, error, run):
    with pytest.raises((AuthorError, LostError, NoSliceError)) as caught:
        run(*ends, **budget)
    assert error is None or caught.value is error
