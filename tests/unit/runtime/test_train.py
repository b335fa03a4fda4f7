"""Who is to blame for a gang that failed, and what is tried again."""

from types import SimpleNamespace

import pytest

from airflow_raytpu.model.errors import BrokenSliceError, LostError, NoSliceError, PlaceError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import slices
from airflow_raytpu.runtime import train as train_module
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.commits import Commit, record
from airflow_raytpu.runtime.loop import call_loop
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host
from airflow_raytpu.runtime.train import TakenError, _Job

AUTHORS = AuthorError("loop raised ValueError on rank 3.", "frames", 2.0)
ECHO = AuthorError("loop raised JaxRuntimeError on rank 0.", "frames", 3.0, collateral=True)
BROKEN = BrokenSliceError("JAX sees 1 process", "look")


@pytest.fixture
def job(make_request):
    def make(**arguments):
        defaults = {
            "train_loop": "m:f",
            "train_loop_config": {"steps": 7},
            "checkpoint": {"every_steps": 5, "keep": 2},
            "failures": 0,
            "evictions": 0,
            "resume": "auto",
        }
        request = make_request(arguments=defaults | arguments)
        return _Job(request, Outbox(request, write=lambda *_: None), plan(TpuSlice.parse("v6e:4x4")))

    return make


@pytest.mark.parametrize(
    ("errors", "expected", "text"),
    [
        ({0: ECHO, 3: AUTHORS}, AuthorError, "ValueError on rank 3"),
        ({0: OSError("died"), 3: AUTHORS}, AuthorError, "ValueError on rank 3"),
        ({0: ECHO, 2: OSError("the actor died\nmore")}, LostError, "worker of rank 2 was lost: the actor died"),
        ({0: ECHO, 1: BROKEN}, BrokenSliceError, "JAX sees 1 process"),
        ({0: ECHO}, AuthorError, "JaxRuntimeError"),
        ({}, LostError, "did not say why"),
    ],
)
def test_whose_fault_it_is(job, errors, expected, text):
    error = job()._blame(errors)

    assert isinstance(error, expected)
    assert text in str(error)


@pytest.mark.parametrize(
    ("shows_after_s", "expected", "text"),
    [
        (15.0, LostError, "host 2 of slice s was lost. The others said: loop raised JaxRuntimeError"),
        (99.0, AuthorError, "JaxRuntimeError"),
    ],
)
def test_an_echo_is_a_loss_where_a_host_turns_out_to_be_gone(job, monkeypatch, shows_after_s, expected, text):
    """The other hosts see a broken connection long before Ray calls the host dead."""
    slept = []
    clock = SimpleNamespace(time=lambda: 1000.0 + sum(slept), sleep=slept.append)
    monkeypatch.setattr(slices, "time", clock)
    hosts = tuple(Host(worker, f"n{worker}", "s", worker) for worker in range(4))
    monkeypatch.setattr(
        "ray.nodes",
        lambda: [
            {"NodeID": each.node_id, "Alive": each.worker_id != 2 or sum(slept) < shows_after_s} for each in hosts
        ],
    )
    held = ReservedSlice(plan(TpuSlice.parse("v6e:4x4")), None, hosts)

    error = job()._blame({0: ECHO, 1: ECHO}, held)

    assert isinstance(error, expected)
    assert text in str(error)


def test_an_error_of_the_authors_own_is_not_waited_over(job, monkeypatch):
    monkeypatch.setattr("airflow_raytpu.runtime.faults.loss", None)
    assert job()._blame({0: ECHO, 3: AUTHORS}, ReservedSlice(None, None, ())) is AUTHORS


def test_what_a_failed_start_means(job):
    from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError

    explain = job()._explain

    assert explain(BROKEN) is BROKEN
    assert isinstance(explain(WorkerGroupStartupTimeoutError(4)), TakenError)
    assert isinstance(explain(WorkerGroupStartupFailedError("gone")), LostError)
    assert isinstance(explain(NotADirectoryError(20, "Not a directory", "/x/snapshot.json")), LostError)
    wrapped = RuntimeError("setup")
    wrapped.__cause__ = BROKEN
    assert explain(wrapped) is BROKEN
    assert "Ray Train failed: KeyError" in str(explain(KeyError("x")))
    assert type(explain(KeyError("x"))) is PlaceError


def run_with(job, monkeypatch, *tries, **arguments):
    """A job whose tries end as given; what it was told to restore each time."""
    made, outcomes, restored = job(**arguments), iter(tries), []

    def one_try(_, restore):
        restored.append(restore.step if restore else 0)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, int):
            record(Commit(outcome, f"{made._root}/{outcome}", made._request.name))
            raise LostError("the slice is gone", "")
        return outcome

    monkeypatch.setattr(made, "_try", one_try)
    monkeypatch.setitem(train_module.os.environ, "RAY_TRAIN_METRICS_ENABLED", "0")
    return made, restored


ENDED = {"step": 7, "metrics": {}, "checkpoint": "uri", "processes": 4, "devices": 16}


def test_each_budget_pays_for_its_own(job, monkeypatch):
    made, restored = run_with(job, monkeypatch, 100, AUTHORS, 300, ENDED, failures=1, evictions=2)

    value = made.run()

    assert (value["failures"], value["evictions"], value["resumed_from"]) == (1, 2, 0)
    assert value["causes"] == [
        "evictions 1: the slice is gone  [RT204]",
        "failures 1: loop raised ValueError on rank 3.",
        "evictions 2: the slice is gone  [RT204]",
    ]
    assert restored == [0, 100, 100, 300]


def test_a_slice_that_was_taken_before_the_workers_came_costs_no_budget(job, monkeypatch):
    made, restored = run_with(job, monkeypatch, TakenError("too late"), TakenError("too late"), ENDED)
    made._until = float("inf")

    value = made.run()

    assert (value["failures"], value["evictions"]) == (0, 0)
    assert restored == [0, 0, 0]


def test_the_search_for_a_slice_ends_with_slice_wait(job, monkeypatch):
    made, _ = run_with(job, monkeypatch, TakenError("too late"), ENDED)
    made._until = 0.0

    with pytest.raises(NoSliceError, match="too late"):
        made.run()


def test_after_a_lost_slice_another_is_waited_for_as_long_as_for_the_first(job, monkeypatch):
    made, _ = run_with(job, monkeypatch, 100, ENDED, evictions=1)
    made._until = 0.0

    made.run()

    limits = made._request.limits
    assert limits.slice_until < made._until <= limits.total_until


@pytest.mark.parametrize(
    ("tries", "error"), [((100, 200), LostError), ((AUTHORS,), AuthorError), ((BROKEN,), BrokenSliceError)]
)
def test_a_spent_budget_fails_the_task(job, monkeypatch, tries, error):
    made, _ = run_with(job, monkeypatch, *tries, failures=0, evictions=1)

    with pytest.raises(error):
        made.run()


def test_a_loop_is_called_as_ray_train_calls_it():
    called = []

    call_loop(called.append, {"a": 1})
    call_loop(lambda: called.append("nothing"), {"a": 1})
    call_loop(lambda config=None: called.append(config), {"a": 1})

    assert called == [{"a": 1}, "nothing", None]


@pytest.mark.parametrize(
    ("began", "reached", "goes_on", "lost_s"),
    [(0, 150, 100, 20.0), (100, 150, 100, 60.0), (100, 100, 100, 60.0), (0, 0, 0, 60.0), (0, 90, 100, 0.0)],
)
def test_of_a_try_that_ended_early_what_is_done_again_is_lost(began, reached, goes_on, lost_s):
    tally = train_module.StepTally()
    tally.begin(began, 0)
    tally.hold(45.0)
    tally.hold(15.0)
    tally.begin(goes_on, reached)
    assert (tally.spent.held_s, tally.lost_s, tally.began_from) == (60.0, pytest.approx(lost_s), [began, goes_on])
    tally.begin(goes_on, goes_on)
    assert tally.lost_s == pytest.approx(lost_s), "a try that never had a slice loses none of it"
