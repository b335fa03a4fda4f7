"""How an attempt's tries are counted, charged and waited for, on a clock of the test's own; no Ray here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import BrokenSliceError, LostError, NoSliceError
from airflow_raytpu.model.observation import ClusterState, JobState, Observation
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase, judge
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import tries
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.faults import first_line
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host
from airflow_raytpu.runtime.tenancy import Tenancy
from airflow_raytpu.runtime.tries import Tries

HELD = ReservedSlice(plan(TpuSlice.parse("v6e:4x4")), None, tuple(Host(n, f"n{n}", "s", n) for n in range(4)))
OWN = AuthorError("own", "", 5.0)
LOST = LostError("host 3 was lost")
SILENT = SilentError("gs://b/x could not be written", "try again")
BROKEN = BrokenSliceError("JAX sees 1 process", "look")


class Clock:
    """Stands for the module ``time``."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tries, "time", clock)
    return clock


@pytest.fixture
def stage(make_request, clock, monkeypatch):
    """Tries that end as told, on slices that are had after a minute; what was seen of them."""

    def stage(*ends, free=False, holds=True, **budgets):
        request = make_request(kind=Kind.JOB, arguments={"failures": 0, "evictions": 0, **budgets})
        outbox = Outbox(request, write=lambda *_: None, clock=clock.time)
        seen = SimpleNamespace(waits=[], doubts=0, outbox=outbox, request=request, while_waiting=lambda: None)
        left = list(ends)

        class Held(Tenancy):
            def take(self, until):
                seen.waits.append(until - clock.now)
                clock.now += 60
                self._tell("no slice")
                seen.while_waiting()
                return HELD

            def doubt(self):
                seen.doubts += 1
                return free

        def work(held):
            assert held is HELD
            end = left.pop(0)
            clock.now += 900
            if callable(end):
                end = end(seen)
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(tries, "Tenancy", Held)
        seen.tries = Tries(request, outbox, HELD.plan, request.arguments, holds=holds)
        seen.run = lambda: seen.tries.run(work)
        return seen

    return stage


def test_faults_of_the_place_and_of_the_code_are_counted_apart(stage):
    seen = stage(OWN, LOST, LOST, {"x": 1}, failures=1, evictions=2)
    assert seen.run() == {"x": 1}
    assert seen.tries.tally.costs() == {
        "evictions": 2,
        "failures": 1,
        "causes": [
            f"failures 1: {first_line(OWN)}",
            f"evictions 1: {first_line(LOST)}",
            f"evictions 2: {first_line(LOST)}",
        ],
    }
    assert seen.tries.tally.spent.held_s == 4 * 900


@pytest.mark.parametrize(
    ("ends", "budget", "error"),
    [
        ([OWN], {"evictions": 9}, OWN),
        ([LOST, LOST], {"failures": 9, "evictions": 1}, LOST),
        ([OWN, LOST], {"failures": 1, "evictions": 0}, LOST),
        ([NoSliceError("none")], {"failures": 9, "evictions": 9}, None),
    ],
)
def test_a_budget_that_is_used_up_ends_it(ends, budget, error, stage):
    with pytest.raises((AuthorError, LostError, NoSliceError)) as caught:
        stage(*ends, **budget).run()
    assert error is None or caught.value is error


# --- slices that are to blame ------------------------------------------------------------------------------------


def further(error):
    """A try that gets somewhere before it ends."""

    def end(seen):
        seen.tries.got_on()
        return error

    return end


def test_silence_of_storage_is_made_good_and_no_slice_is_doubted(stage):
    seen = stage(SILENT, SILENT, {"x": 1}, evictions=2)
    assert seen.run() == {"x": 1}
    assert (seen.tries.tally.costs()["evictions"], seen.doubts) == (2, 0)


def test_slices_on_which_nothing_was_done_are_doubted_and_others_are_not(stage):
    seen = stage(LOST, further(LOST), LOST, OWN, further(OWN), 1, failures=2, evictions=3)
    seen.run()
    assert seen.doubts == 2


@pytest.mark.parametrize(("free", "evictions"), [(True, 1), (True, 0), (False, 9)])
def test_a_slice_that_is_not_what_it_says_costs_an_eviction_where_there_is_another(stage, free, evictions):
    seen = stage(further(BROKEN), 1, free=free, evictions=evictions)
    if free and evictions:
        assert seen.run() == 1
        assert seen.tries.tally.costs()["causes"] == ["evictions 1: JAX sees 1 process"]
    else:
        with pytest.raises((BrokenSliceError, LostError), match="JAX sees 1 process"):
            seen.run()


# --- waiting again -----------------------------------------------------------------------------------------------


def test_a_second_wait_for_a_slice_has_a_time_of_its_own(stage):
    seen = stage(LOST, LOST, LOST, 1, evictions=3)
    seen.run()
    # The first counts from the request; those behind it from their own begin, an hour each.
    assert seen.waits == [3600.0] * 4


@pytest.mark.parametrize("begun", [True, False])
def test_airflow_calls_it_neither_stalled_nor_late_to_start_while_it_waits_again(stage, clock, begun):
    def end(seen):
        if begun:
            seen.outbox.tell(phase="running", done=3)
        return LOST

    def an_hour():
        for _ in range(119 if seen.tries.tally.tries else 0):
            clock.now += 30
            seen.outbox.wait("no slice")
            now = Observation(cluster=ClusterState.READY, job=JobState.RUNNING, progress=seen.outbox.latest)
            assert judge(now, seen.request.limits, clock.now).phase is Phase.RUNNING

    seen = stage(end, 1, evictions=1)
    seen.while_waiting = an_hour
    seen.run()
    # What was held counts from the first try on, once something was done on it.
    assert seen.outbox.latest.slice_at == (1060.0 if begun else clock.now - 900)


def test_a_work_that_takes_slices_in_its_own_way_is_only_shown_them(stage, monkeypatch):
    left = []
    monkeypatch.setattr(Tenancy, "__exit__", lambda *_: left.append(1))
    seen = stage(lambda _: len(left), holds=False)
    monkeypatch.setattr("airflow_raytpu.runtime.tenancy.Tenancy", tries.Tenancy)
    assert seen.run() == 1
