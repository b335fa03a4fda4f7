"""Any program on a real slice: once a host or on the driver, its end judged for what it is, and nothing left behind."""

import asyncio
import json
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_raytpu.backends.simulated.backend import SimulatedBackend
from airflow_raytpu.model.observation import JobState
from airflow_raytpu.model.request import Kind
from airflow_raytpu.storage import objects, staging
from airflow_raytpu.storage.programs import find_program
from tests.simulated_cluster import job_request, running_cluster, wait_for

pytestmark = pytest.mark.cluster

HOSTILE = [
    "--name",
    "a b",
    "$(touch /tmp/pwned)",
    "`id`",
    "; exit 0 #",
    "quote'\"s",
    "new\nline",
    "ü→",
    "",
    "--",
    "{x}",
]

SOURCE = """
import json
import os
import signal
import sys
import time


def whoami(scale, unit="chips"):
    import jax
    import ray

    from airflow_raytpu.runtime import here

    jax.distributed.initialize(**here.processes())
    ray.init(log_to_driver=False)
    print("hello from a host")
    me = {
        "worker": int(os.environ["TPU_WORKER_ID"]),
        "rank": here.rank(),
        "host": here.reserved().hosts[here.rank()].worker_id,
        "chips": jax.local_device_count() * scale,
        "all": jax.device_count(),
        "unit": unit,
        "extra": os.environ["EXTRA"],
        "nodes": sum(node["Alive"] for node in ray.nodes()),
    }
    here.progress(3, 3, unit="row", loss=0.5)
    return me


def third_host_raises():
    if os.environ["TPU_WORKER_ID"] == "2":
        raise ValueError("labels out of range: 10")
    time.sleep(600)


def leaves_half_way():
    sys.exit(0)


def vanishes_half_way():
    os._exit(0)


def not_json():
    return {"rows": [1, {2, 3}]}


def places_its_own(names):
    import ray

    from airflow_raytpu.runtime import here

    @ray.remote
    class Worker:
        def where(self):
            return os.environ["TPU_WORKER_ID"], os.environ["TPU_NAME"]

    hosts = here.reserved().hosts
    workers = [Worker.options(**here.on(host)).remote() for host in hosts]
    found = ray.get([worker.where.remote() for worker in workers], timeout=60)
    assert [int(worker) for worker, _ in found] == [host.worker_id for host in hosts]
    return {names[0]: sorted(worker for worker, _ in found), "chips": ray.available_resources().get("TPU", 0)}


def takes_its_own():
    import ray
    from ray.util.placement_group import placement_group

    from airflow_raytpu.runtime import here

    group = placement_group([{"TPU": 4}] * len(here.reserved().hosts), strategy="STRICT_SPREAD")
    assert group.wait(30)
    return [here.reserved().group, ray.available_resources().get("TPU", 0)]


def slow(marks):
    with open(f"{marks}/{os.environ.get('TPU_WORKER_ID', 'driver')}-{time.time_ns()}", "w"):
        pass
    # Whoever runs for the first time waits for its end.
    while len([name for name in os.listdir(marks) if name.startswith("1-")]) < 2:
        time.sleep(0.2)
    return os.environ["TPU_NAME"]


def saves(marks, name):
    def save(*_):
        time.sleep(1)
        with open(f"{marks}/{name}-saved-{os.getpid()}", "w"):
            os._exit(0)

    signal.signal(signal.SIGTERM, save)
    with open(f"{marks}/{name}-{os.getpid()}", "w"):
        time.sleep(600)


def waits(marks):
    with open(f"{marks}/{os.getpid()}", "w"):
        time.sleep(600)
"""

SCRIPT = """
import json
import sys

import neighbour
import ray

assert __name__ == "__main__"
ray.init()
with open(neighbour.place(), "w") as out:
    json.dump({"argv": sys.argv[1:], "hosts": len([n for n in ray.nodes() if "TPU" in n["Resources"]])}, out)
sys.exit(int(sys.argv[1] == "fail") * 3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "code" / "tools").mkdir(parents=True)
    (folder / "code" / "job_wares.py").write_text(SOURCE)
    (folder / "code" / "tools" / "script.py").write_text(SCRIPT)
    (folder / "code" / "tools" / "neighbour.py").write_text(f"def place():\n    return {str(folder / 'out.json')!r}\n")
    return folder


@pytest.fixture(scope="module")
def code(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "code"))
        programs = [find_program("job_wares:whoami"), find_program("tools/script.py")]
        return staging.stage([program.code for program in programs], (folder / "storage").as_uri())


@pytest.fixture(scope="module")
def make(folder, code):
    def make(on, entry, *args, attempt=1, **changes):
        how = "script" if entry.endswith(".py") else "function"
        return job_request(
            f"job-{entry.replace('_', '-').replace('/', '-')}",
            folder / "runs",
            code,
            on=on,
            attempt=attempt,
            slice="v6e:4x4",
            kind=Kind.JOB,
            arguments={
                "how": how,
                "entry": entry if how == "script" else f"job_wares:{entry}",
                "args": list(args),
                "kwargs": {},
                "per_host": False,
                "reserve": True,
                "env": {},
                "failures": 0,
                "evictions": 0,
                **changes,
            },
        )

    return make


@pytest.fixture
def run(simulated_cluster, make):
    def run(entry, *args, **changes):
        request = make(simulated_cluster.request, entry, *args, **changes)
        seen = simulated_cluster.run(request)
        assert seen.outcome is not None, simulated_cluster.log(request)
        return seen

    return run


def test_each_host_runs_it_once_with_its_own_chips_in_one_mesh(simulated_cluster, make):
    request = make(
        simulated_cluster.request, "whoami", 1, kwargs={"unit": "TPU"}, env={"EXTRA": "a 'b'"}, per_host=True
    )
    seen = simulated_cluster.run(request)

    assert seen.outcome.succeeded, seen.outcome
    assert "hello from a host" in simulated_cluster.log(request)
    value = seen.outcome.value
    assert value["value"] == [
        {"worker": n, "rank": n, "host": n, "chips": 4, "all": 16, "unit": "TPU", "extra": "a 'b'", "nodes": 5}
        for n in range(4)
    ]
    assert (value["hosts"], value["chips"], value["evictions"], value["failures"]) == (4, 16, 0, 0)
    assert value["chip_hours"] > 0
    assert (seen.progress.phase, seen.progress.unit, seen.progress.done) == ("running", "row", 3)


def test_an_error_on_one_host_names_it_and_shows_the_authors_frames(run, simulated_cluster):
    seen = run("third_host_raises", per_host=True)

    assert seen.job is JobState.FAILED
    assert seen.outcome.code == "RT301"
    assert (
        seen.outcome.cause
        == f"third_host_raises raised ValueError on host 2, slice {simulated_cluster.slices()[0].name}."
    )
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if "labels out of range" in text)
    assert seen.outcome.traceback.splitlines()[-1] == f"job_wares.py:{line}: ValueError: labels out of range: 10"


@pytest.mark.parametrize(
    ("entry", "per_host", "cause"),
    [
        ("leaves_half_way", False, r"leaves_half_way ended with sys.exit\(0\)."),
        (
            "vanishes_half_way",
            True,
            r"job_wares:vanishes_half_way ended its process with status 0 before it was done",
        ),
        ("not_json", False, r"job_wares:not_json returned a value that is not JSON: a set at \['rows'\]\[1\]."),
    ],
)
def test_whatever_is_no_return_of_a_json_value_is_no_success(run, entry, per_host, cause):
    seen = run(entry, per_host=per_host)

    assert seen.job is JobState.FAILED
    assert seen.outcome.code == "RT301"
    assert re.match(cause, seen.outcome.cause), seen.outcome


def test_a_script_is_given_its_words_exactly_and_its_status_counts(run, folder):
    seen = run("tools/script.py", *HOSTILE)

    assert seen.outcome.succeeded, seen.outcome
    assert seen.outcome.value["value"] is None
    assert json.loads((folder / "out.json").read_text()) == {"argv": HOSTILE, "hosts": 4}
    assert not Path("/tmp/pwned").exists()

    failed = run("tools/script.py", "fail", attempt=2)

    assert failed.outcome.code == "RT301"
    assert failed.outcome.cause == "tools/script.py ended with sys.exit(3)."


def test_a_program_on_the_driver_places_its_own_actors_on_the_held_slice(run):
    seen = run("places_its_own", ["workers"])

    assert seen.outcome.succeeded, seen.outcome
    assert seen.outcome.value["value"] == {"workers": ["0", "1", "2", "3"], "chips": 0}


def test_a_slice_is_left_to_a_program_that_takes_it_by_itself(run):
    seen = run("takes_its_own", reserve=False)

    assert seen.outcome.succeeded, seen.outcome
    assert seen.outcome.value["value"] == [None, 0]


@pytest.mark.parametrize(("per_host", "processes"), [(True, 4), (False, 1)])
def test_whoever_is_stopped_may_save_what_it_has(simulated_cluster, make, tmp_path, per_host, processes):
    name = f"per-host-{per_host}"
    request = make(simulated_cluster.request, "saves", str(tmp_path), name, per_host=per_host, attempt=processes)

    async def stop():
        backend = SimulatedBackend(simulated_cluster.root)
        try:
            while not await backend.ensure(request):
                await asyncio.sleep(0.2)
            await asyncio.to_thread(wait_for, lambda: len(list(tmp_path.glob(f"{name}-*"))) == processes)
            await backend.stop(request)
            return await backend.observe(request)
        finally:
            await backend.close()

    seen = asyncio.run(stop())

    assert seen.job is JobState.STOPPED
    assert seen.outcome is None
    assert len(list(tmp_path.glob(f"{name}-saved-*"))) == processes


def test_work_that_nobody_looks_at_any_more_ends_itself_in_good_order(simulated_cluster, make, run, tmp_path):
    # A time to live that is over soon after the program has begun.
    request = replace(make(simulated_cluster.request, "saves", str(tmp_path), "alone", attempt=9), ttl_s=5.0)
    objects.write_json(request.outbox("beat"), {"at": 0})

    seen = simulated_cluster.run(request)

    assert (seen.job, seen.outcome) == (JobState.FAILED, None)
    assert len(list(tmp_path.glob("alone-saved-*"))) == 1
    assert f"Nobody has looked at {request.name} for 15 s: it ends." in simulated_cluster.log(request)
    assert run("places_its_own", ["after"], attempt=3).outcome.succeeded


def test_a_killed_driver_leaves_no_process_and_no_reservation(simulated_cluster, make, run, tmp_path):
    request = make(simulated_cluster.request, "waits", str(tmp_path), per_host=True)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(simulated_cluster.run(request)))
    thread.start()
    try:
        programs = wait_for(lambda: len(pids := list(tmp_path.iterdir())) == 4 and [int(pid.name) for pid in pids])
        (driver,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(request.name in word for word in process.info["cmdline"] or ()) and "python" in process.name()
        ]
        driver.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in programs))
    finally:
        thread.join()
    assert seen[0].job is JobState.FAILED
    assert seen[0].outcome is None

    # The slice is free for the next at once.
    assert run("places_its_own", ["again"], attempt=2).outcome.succeeded


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_lost_host_is_an_eviction_and_the_program_begins_again_on_a_whole_slice(make, tmp_path):
    with running_cluster("v6e:4x4*2") as found:
        request = make(found.request, "slow", str(tmp_path), per_host=True, evictions=1)
        ended = []
        thread = threading.Thread(target=lambda: ended.append(found.run(request, 240)))
        thread.start()
        try:
            wait_for(lambda: len(list(tmp_path.iterdir())) == 4, 120)
            message = asyncio.run(look(found, request)).progress.message
            (held,) = [number for number, each in enumerate(found.slices()) if message == f"on {each.name}"]
            found.kill_host(held, 3)
        finally:
            thread.join()
        (seen,) = ended
        assert seen.outcome is not None, found.log(request)
        assert seen.outcome.succeeded, seen.outcome
        value = seen.outcome.value
        assert (value["evictions"], value["failures"]) == (1, 0)
        assert value["value"] == [found.slices()[1 - held].name] * 4


async def look(found, request):
    backend = SimulatedBackend(found.root)
    try:
        return await backend.observe(request)
    finally:
        await backend.close()
