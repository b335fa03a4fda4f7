"""The whole way of a checkpoint in Google Cloud Storage, by the real clients: Google's, gcsfs and TensorStore.

The bucket cannot be seen, only what is in it: that is what Storage Object User allows.
"""

import json
import re

import pytest

from airflow_raytpu.model.errors import CheckpointError, LostError, PathError
from airflow_raytpu.model.policies import CheckpointPolicy
from airflow_raytpu.runtime import checkpoints, files, saving
from airflow_raytpu.runtime.checkpoints import Session
from airflow_raytpu.runtime.commits import RECORD, OvertakenError, committed, newest, sweep
from tests.doubles.bucket_server import ALWAYS

# After a failure Orbax closes a loop that TensorStore still calls back (0.12).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = "gs://runs/a%20run/checkpoints"


@pytest.fixture
def jax(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import jax

    return jax


@pytest.fixture
def run(bucket, jax, monkeypatch):
    """Trains up to a step, as a driver and its one worker do; the session, where it began, and the state."""
    from orbax.checkpoint._src.serialization import tensorstore_utils

    monkeypatch.setattr(checkpoints, "_report", lambda commit: None)
    # As the other clients here, TensorStore makes no pause between two tries.
    retries = {"initial_delay": "1ms", "max_delay": "10ms"}
    monkeypatch.setitem(tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT, "gcs_request_retries", retries)

    def init():
        return {"x": jax.numpy.zeros((4, 2)), "key": jax.random.key(0), "name": 3}

    def train(steps, root=ROOT, **policy):
        files.make_folder(root)
        sweep(root)
        policy = CheckpointPolicy(**{"every_steps": 10, **policy})
        restore = newest(root, ["one"])
        session = Session(root, "one", policy, ("one",), restore, steps, 0, lambda news: None)
        with checkpoints.opened(session):
            state, step = checkpoints.restore_or_init(init)
            began = step
            while step < steps:
                state = {**state, "x": state["x"] + 1}
                step += 1
                checkpoints.step(step, state, {"loss": 1 / step})
            session.finish()
        return session, began, state

    return train


def steps(root=ROOT):
    return [commit.step for commit in committed(root, ["one"])]


def folders():
    return files.children(ROOT)


def test_a_run_is_saved_pruned_and_gone_on_with(run, bucket):
    run(25)
    assert (steps(), folders()) == ([25, 20], ["20", "25"])

    _, began, state = run(31)

    assert began == 25
    assert state["x"].tolist() == [[31.0, 31.0]] * 4
    assert (steps(), folders()) == ([31, 25], ["25", "31"])
    assert checkpoints.load(f"{ROOT}/31")["x"].tolist() == [[31.0, 31.0]] * 4
    # Its own marker and the two checkpoints: no folder is left without its files.
    assert {name.split("/")[2] for name in bucket.held} == {"", "25", "31"}


def test_what_a_broken_save_leaves_is_never_restored_and_makes_way(run, bucket):
    run(10)
    whole = {name: data for name, data in bucket.held.items() if "/10/" in name}
    # Of 20 all is there but the record, which is what a kill just before it leaves; of 30 a part of a file lacks.
    bucket.held |= {name.replace("/10/", "/20/"): data for name, data in whole.items() if not name.endswith(RECORD)}
    bucket.held |= {name.replace("/10/", "/30/"): data for name, data in whole.items()}
    record = json.loads(bucket.held[f"a run/checkpoints/30/{RECORD}"])
    bucket.held[f"a run/checkpoints/30/{RECORD}"] = json.dumps(record | {"step": 30}).encode()
    bucket.held["a run/checkpoints/30/_METADATA"] += b" "
    bucket.held["a run/checkpoints/20/left over"] = b""

    _, began, _ = run(35)

    assert began == 10
    assert (steps(), folders()) == ([35, 30], ["30", "35"])
    assert not [name for name in bucket.held if "left over" in name]
    _, began, state = run(36)
    assert (began, state["x"].tolist()) == (35, [[36.0, 36.0]] * 4)


@pytest.mark.parametrize("what", ["status", "reset", "lost"])
def test_trouble_in_a_save_and_a_restore_is_outlived_by_every_client(what, run, bucket, caplog):
    for of in ("put .*/d/", "begin .*/_METADATA", f"put .*/{RECORD}", "list .*checkpoints/$", "delete .*/10"):
        bucket.trouble(what, of)
    run(25)
    saved = list(bucket.met)
    for of in ("get .*/manifest", "get .*/_METADATA", f"get .*/{RECORD}"):
        bucket.trouble(what, of)

    _, began, _ = run(26)

    assert began == 25
    assert not [line for line in caplog.messages if "could not be" in line or "torn" in line]
    assert len(saved) == 5, saved
    assert len(bucket.met) == 8, bucket.met


def test_of_two_gangs_that_commit_one_step_the_second_stops(run, bucket, monkeypatch):
    run(10)
    theirs = f"a run/checkpoints/20/{RECORD}"
    inventory = saving.inventory

    def while_they_commit(uri):
        if uri.endswith("/20"):
            bucket.held[theirs] = b"{}"
        return inventory(uri)

    monkeypatch.setattr(saving, "inventory", while_they_commit)

    with pytest.raises(OvertakenError, match=f"Others have committed {ROOT}/20 while it was saved here"):
        run(40)

    assert bucket.held[theirs] == b"{}"
    assert steps() == [10]


def test_a_bucket_that_says_nothing_holds_up_a_save_for_no_longer_than_allowed(run, bucket, caplog):
    # A place of its own: the client still writes there when it is let go.
    root = "gs://runs/hung/checkpoints"
    bucket.trouble("hang", "put .*/20/.*/d/", times=ALWAYS)

    run(25, root, longest_save=1.0)

    (told,) = [line for line in caplog.messages if "could not be saved" in line]
    assert "The checkpoint of step 20 could not be saved: " in told
    assert "(1 of 3 in a row). The last good one is step 10" in told
    assert steps(root) == [25, 10]


@pytest.mark.parametrize("of", ["get .*/_METADATA", "get .*/ocdbt.process_0/manifest|get .*/manifest"])
def test_a_bucket_that_gives_nothing_back_is_not_the_authors_fault(of, run, bucket):
    run(10)
    bucket.trouble("status", of, status=403, times=ALWAYS)

    with pytest.raises(LostError, match=f"The checkpoint {ROOT}/10 could not be read: .*") as caught:
        run(20)

    assert "the Ray pods may read there" in caught.value.lever
    bucket.troubles.clear()
    assert run(20)[1] == 10


@pytest.mark.parametrize("of", ["get .*/_METADATA", "get .*/ocdbt.process_0/manifest|get .*/manifest", "get .*/d/"])
def test_nor_is_it_where_a_whole_checkpoint_is_loaded(of, run, bucket):
    run(10)
    bucket.trouble("status", of, status=403, times=ALWAYS)

    with pytest.raises(LostError, match=f"The checkpoint {ROOT}/10 could not be read: .*"):
        checkpoints.load(f"{ROOT}/10")

    bucket.troubles.clear()
    assert checkpoints.load(f"{ROOT}/10")["x"].tolist() == [[10.0, 10.0]] * 4
    with pytest.raises(PathError, match=f"There is no checkpoint at {ROOT}/11."):
        checkpoints.load(f"{ROOT}/11")


def test_a_save_that_is_refused_is_gone_on_without_until_it_is_one_too_many(run, bucket, caplog):
    bucket.trouble("status", "(put|begin|part) .*checkpoints/(20|40|50)/", status=403, times=ALWAYS)

    with pytest.raises(CheckpointError) as caught:
        run(60, failed_saves=2)

    (told, *_) = [line for line in caplog.messages if "could not be saved" in line]
    assert re.search(r"step 20 could not be saved: .*(?s:.*) \(1 of 2 in a row\).*last good one is step 10", told)
    assert "(2 saves have failed one after another)" in caught.value.cause
    assert f"The last good one is step 30 ({ROOT}/30)." in caught.value.cause
    # What is left of the others does not count.
    assert steps() == [30, 10]
    bucket.troubles.clear()
    assert run(51)[1] == 30
    assert (steps(), folders()) == ([51, 50], ["50", "51"])
