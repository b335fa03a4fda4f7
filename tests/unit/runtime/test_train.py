"""Who is to blame for a gang that failed, and what is tried again."""

from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from airflow_raytpu.model.errors import BrokenSliceError, DivergedError, LostError, NoSliceError, PlaceError
from airflow_raytpu.model.goodput import Pace
from airflow_raytpu.model.policies import Profile
from airflow_raytpu.model.spent import Spent
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import files, profiling, slices
from airflow_raytpu.runtime import train as train_module
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.buckets import SilentError
from airflow_raytpu.runtime.commits import Commit, record
from airflow_raytpu.runtime.loop import call_loop
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.resizing import ResizeError
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.survey import Host
from airflow_raytpu.runtime.train import TakenError, _Job

AUTHORS = AuthorError("loop raised ValueError on rank 3.", "frames", 2.0)
ECHO = AuthorError("loop raised JaxRuntimeError on rank 0.", "frames", 3.0, collateral=True)
RESIZE = ResizeError("b free: saved at step 20, to go on with more slices.")
SHARD = RayTaskError("read", "...", RayTaskError("map", "...", SilentError("gs://b/x could not be read", "wait")))
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
        ({0: ECHO, 1: SHARD}, SilentError, "gs://b/x could not be read"),
        ({}, LostError, "did not say why"),
        ({0: OSError("died"), 1: RESIZE, 2: ECHO, 3: AUTHORS}, ResizeError, "b free: saved at step 20"),
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


def test_more_slices_are_gone_on_with_at_nobodys_cost(job, monkeypatch):
    made, restored = run_with(job, monkeypatch, 100, RESIZE, RESIZE, ENDED, evictions=1)
    made._until = 0.0
    resizes = [{"at_step": 100, "slices": 1, "why": "slice b lost"}]
    made._tally.spent = Spent(resizes=resizes)

    value = made.run()

    assert (value["failures"], value["evictions"]) == (0, 1)
    assert restored == [0, 100, 100, 100]
    assert made._until > made._request.limits.slice_until
    assert value["resizes"] == resizes


def test_chip_hours_are_those_of_the_slices_that_were_held(job):
    before = Spent(held_s=900.0).to_dict()
    made = job(elastic=[1, 2], spent=before)
    pair = _Job(made._request, made._outbox, plan(TpuSlice.parse("v6e:4x4*2")))
    pair._tally.begin(0)
    assert pair._result(ENDED)["chip_hours"] == 8.0, "those of earlier attempts are in it"
    pair._sizes.begin(ReservedSlice(pair._plan, None, (Host(0, "n0", "s", 0),)), 0)
    pair._tally.end(Pace(), pair._tally.at + 3600.0)

    assert pair._result(ENDED)["chip_hours"] == 24.0


def test_the_workers_are_told_of_the_slices_of_this_try(job):
    made = job(elastic=[1, 2])
    pair = _Job(made._request, made._outbox, plan(TpuSlice.parse("v6e:4x4*2")))
    settings = [pair._settings(ReservedSlice(pair._plan.sized(count), None, ()), None) for count in (1, 2)]

    assert [(each.workers, each.devices, each.may_grow) for each in settings] == [(4, 16, True), (8, 32, False)]


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


def nan_at(step):
    return DivergedError.at(step, f"The loss is nan at step {step}.", "Lower it.")


def test_a_loss_that_is_no_number_goes_back_at_the_failures_cost(job, monkeypatch):
    tries = (100, nan_at(150), nan_at(160), 300, ENDED)
    made, restored = run_with(job, monkeypatch, *tries, on_nan="roll_back", failures=2, evictions=2)

    value = made.run()

    assert (value["failures"], value["evictions"]) == (2, 2)
    assert value["causes"][1] == "failures 1: The loss is nan at step 150."
    assert restored == [0, 100, 100, 100, 300]


def test_it_goes_back_beyond_a_checkpoint_whose_state_made_the_loss(job, monkeypatch):
    tries = (100, 200, nan_at(201), ENDED)
    made, restored = run_with(job, monkeypatch, *tries, on_nan="roll_back", failures=1, evictions=2)

    made.run()

    assert restored == [0, 100, 200, 100]


@pytest.mark.parametrize(
    ("on_nan", "failures", "steps", "text"),
    [
        ("roll_back", 9, (150, 160, 150), "no number twice at step 150, so it is no accident"),
        ("roll_back", 1, (150, 160), "^The loss is nan at step 160"),
        ("stop", 9, (150,), "^The loss is nan at step 150"),
        ("ignore", 9, (150,), "^The loss is nan at step 150"),
    ],
)
def test_a_loss_that_is_no_number_ends_it_where_going_back_does_not_help(
    job, monkeypatch, on_nan, failures, steps, text
):
    tries = [nan_at(step) for step in steps]
    made, restored = run_with(job, monkeypatch, *tries, ENDED, on_nan=on_nan, failures=failures)

    with pytest.raises(DivergedError, match=text):
        made.run()

    assert len(restored) == len(steps)


def test_a_loop_that_ends_without_a_word_is_told_of(job, monkeypatch, caplog):
    made, _ = run_with(job, monkeypatch, {"processes": 4, "devices": 16})

    assert made.run()["step"] == 0

    assert "The loop ended without having reported a step" in caplog.text


def test_what_is_traced_and_where_the_series_is_goes_into_the_result(job, monkeypatch, caplog):
    made, _ = run_with(job, monkeypatch, ENDED, profiler={"start_step": 3, "steps": 2})
    assert made._profile() == Profile(start_step=3, steps=2)
    files.write_bytes(f"{profiling.folder(made._request)}/plugins/x.xplane.pb", b"trace")

    value = made.run()

    assert made._profile() is None, "once in a run"
    assert value["profile"] == f"{made._request.storage}/profile/1"
    assert value["series"] == f"{made._request.storage}/metrics"
    assert value["goodput"]["useful_s"] == 0.0
    assert "ended without" not in caplog.text
    assert run_with(job, monkeypatch, ENDED)[0]._profile() is None


@pytest.mark.parametrize(("others", "evictions"), [(True, 1), (True, 0), (False, 9)])
def test_a_slice_that_is_not_what_it_says_costs_an_eviction_where_there_is_another(job, monkeypatch, others, evictions):
    monkeypatch.setattr("airflow_raytpu.runtime.tenancy.Tenancy.doubt", lambda _: others)
    made, _ = run_with(job, monkeypatch, BROKEN, ENDED, evictions=evictions)

    if others and evictions:
        assert made.run()["causes"] == ["evictions 1: JAX sees 1 process"]
    else:
        with pytest.raises(PlaceError, match="JAX sees 1 process"):
            made.run()


@pytest.mark.parametrize(("reached", "doubted"), [(0, [1]), (3, [])])
def test_a_slice_on_which_no_step_was_done_is_doubted(job, monkeypatch, reached, doubted):
    asked = []
    monkeypatch.setattr("airflow_raytpu.runtime.tenancy.Tenancy.doubt", lambda _: asked.append(1))
    made, _ = run_with(job, monkeypatch, LostError("gone", ""), ENDED, evictions=1)
    one_try = made._try

    def held(*given):
        made._tally.end(Pace(begun_at=made._tally.at, first_s=1.0, first=1, reached=reached), made._tally.at + 9)
        return one_try(*given)

    monkeypatch.setattr(made, "_try", held)
    made.run()

    assert asked == doubted


def test_a_loop_is_called_as_ray_train_calls_it():
    called = []

    call_loop(called.append, {"a": 1})
    call_loop(lambda: called.append("nothing"), {"a": 1})
    call_loop(lambda config=None: called.append(config), {"a": 1})

    assert called == [{"a": 1}, "nothing", None]
