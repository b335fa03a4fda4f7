"""One process of the author's program, from inside and from outside."""

from __future__ import annotations

import enum
import json
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.model.errors import CodeError, LostError, RequestError, UserCodeError
from airflow_raytpu.runtime import here, launch, program
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.launch import Launch
from tests.simulated_cluster import wait_for

SOURCE = """
import json
import os
import signal
import subprocess
import sys

from airflow_raytpu.runtime import here


def echo(*args, **kwargs):
    return [list(args), kwargs, os.environ.get("EXTRA")]


async def later(value):
    return value


def raises(text):
    raise ValueError(text)


def leaves(code):
    sys.exit(code)


def kills_itself(number):
    os.kill(os.getpid(), number)


def strays():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid


def tells():
    here.progress(1, 3, unit="row", loss=0.5)
    here.progress(2, 3)
    return [here.rank(), [host.worker_id for host in here.reserved().hosts], here.processes()]
"""

SCRIPT = """
import json
import sys

import beside

assert __name__ == "__main__"
beside.put([sys.argv, sys.path[0]])
if sys.argv[1:] and sys.argv[1].startswith("exit"):
    sys.exit({"exit": None, "exit 0": 0, "exit 3": 3, "exit text": "no input"}[sys.argv[1]])
"""


@pytest.fixture
def wares(tmp_path, monkeypatch):
    (tmp_path / "program_wares.py").write_text(SOURCE)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "script.py").write_text(SCRIPT)
    (tmp_path / "tools" / "beside.py").write_text(
        f"import json\ndef put(x):\n    with open({str(tmp_path / 'out')!r}, 'w') as out: json.dump(x, out)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(launch, "_POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    # Where Ray's worker would have it from its working directory.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    for name in ("program_wares", "beside"):
        sys.modules.pop(name, None)


def task(entry, *args, how="function", **more):
    return {
        "how": how,
        "entry": entry if how != "function" else f"program_wares:{entry}",
        "args": list(args),
        "kwargs": {},
        "connect": False,
        "where": " on host 2",
        "rank": 2,
        "coordinator": "10.0.0.1:8476",
        "slice": "v6e:4x4",
        "group": None,
        "hosts": [{"bundle": n, "node_id": f"n{n}", "slice_name": "s", "worker_id": n} for n in range(4)],
        **more,
    }


# --- from inside -------------------------------------------------------------------------------------------------


def test_a_function_is_given_its_arguments_and_its_value_is_kept(wares):
    assert program.run(task("echo", 1, "$(id)", kwargs={"x": [None]})) == [[1, "$(id)"], {"x": [None]}, None]
    assert program.run(task("later", 7)) == 7


def test_a_script_runs_as_python_runs_it(wares):
    assert program.run(task("tools/script.py", "a b", "--x", how="script")) is None
    argv, first = json.loads((wares / "out").read_text())
    assert argv == ["tools/script.py", "a b", "--x"]
    assert first == str(wares / "tools")


def test_a_module_runs_as_python_m_runs_it(wares):
    (wares / "beside.py").write_text((wares / "tools" / "beside.py").read_text())
    program.run(task("tools.script", "1", how="module"))
    argv, _ = json.loads((wares / "out").read_text())
    assert argv[1:] == ["1"]
    assert argv[0].endswith("script.py")


@pytest.mark.parametrize("word", ["exit", "exit 0"])
def test_a_script_that_exits_with_0_has_succeeded(word, wares):
    assert program.run(task("tools/script.py", word, how="script")) is None


@pytest.mark.parametrize(("word", "said"), [("exit 3", "sys.exit(3)"), ("exit text", "sys.exit('no input')")])
def test_a_script_that_exits_with_anything_else_has_failed(word, said, wares):
    with pytest.raises(AuthorError) as caught:
        program.run(task("tools/script.py", word, how="script"))
    assert caught.value.cause == f"tools/script.py ended with {said} on host 2."


@pytest.mark.parametrize("code", [0, None, 1, "text"])
def test_a_function_that_exits_has_not_returned(code, wares):
    with pytest.raises(AuthorError, match="leaves ended with "):
        program.run(task("leaves", code))


def test_an_error_is_quoted_in_the_authors_frames(wares):
    with pytest.raises(AuthorError) as caught:
        program.run(task("raises", "no label"))
    assert caught.value.cause == "raises raised ValueError on host 2."
    line = SOURCE.splitlines().index("    raise ValueError(text)") + 1
    assert caught.value.traceback.splitlines()[-1] == f"program_wares.py:{line}: ValueError: no label"
    assert not caught.value.collateral


def test_what_is_not_there_is_the_requests_fault(wares):
    with pytest.raises(CodeError, match="has no 'nothing'"):
        program.run(task("nothing"))


def test_an_error_by_which_ray_says_that_a_host_is_gone_may_be_an_echo():
    import ray

    gone = ray.exceptions.NodeDiedError("gone")
    assert program.is_collateral(gone)
    wrapped = RuntimeError("my actor failed")
    wrapped.__cause__ = gone
    assert program.is_collateral(wrapped)
    assert not program.is_collateral(ray.exceptions.GetTimeoutError("slow"))
    assert not program.is_collateral(None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_every_json_value_is_handed_back_as_it_is(value):
    assert json.loads(json.dumps(program.checked("f", value))) == value


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"a set at \['a'\]\[1\]"),
        ({1: "x"}, "a key 1"),
        ([float("nan")], r"nan at \[0\]"),
        (float("inf"), "JSON: inf"),
        (np.float32(1), "a float32"),
        (np.float64(1), "1.0"),
        (np.zeros(2), "a ndarray"),
        (Colour.RED, "a Colour"),
        (b"x", "a bytes"),
        (object, "a type"),
        ("x" * 1_000_001, "1,000,003 bytes"),
    ],
)
def test_any_other_value_is_refused_with_its_place(value, message):
    with pytest.raises(UserCodeError, match=message):
        program.checked("f", value)


def test_here_is_only_for_programs_of_ours(monkeypatch):
    monkeypatch.delenv(program.FOLDER, raising=False)
    here._task.cache_clear()
    with pytest.raises(RequestError, match="not started by"):
        here.rank()


# --- from outside ------------------------------------------------------------------------------------------------


def finish(given, environment=None):
    with Launch(given, environment or {}) as process:
        return process.wait(lambda: None)


def test_a_process_is_given_exactly_what_was_asked_for(wares):
    words = ["a b", "$(id)", "; exit 1 #", "'\"", "new\nline", "ü", ""]
    assert finish(task("echo", *words), {"EXTRA": "x y"}) == [words, {}, "x y"]


def test_it_knows_where_it_is_and_tells_how_far(wares):
    with Launch(task("tells"), {}) as process:
        assert process.wait(lambda: None) == [
            2,
            [0, 1, 2, 3],
            {"coordinator_address": "10.0.0.1:8476", "num_processes": 4, "process_id": 2},
        ]
        # The second word came within a second of the first.
        assert process.news() == {"done": 1, "total": 3, "unit": "row", "metrics": {"loss": 0.5}}
        assert process.answered


def test_its_last_word_is_heard_though_it_ends_at_once(wares):
    heard = []
    with Launch(task("tells"), {}) as process:
        process.wait(lambda: heard.append(process.news()))
    assert heard[-1]["done"] == 1


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (signal.SIGKILL, LostError, "was killed from outside with SIGKILL on host 2"),
        (signal.SIGSEGV, AuthorError, "crashed with SIGSEGV on host 2"),
    ],
)
def test_a_kill_from_outside_is_a_loss_and_a_crash_is_the_programs(number, error, message, wares):
    with pytest.raises(error, match=message):
        finish(task("kills_itself", int(number)))


def test_a_kill_for_want_of_memory_is_the_programs(wares, tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 3\noom_kill 3\n")
    monkeypatch.setattr(launch, "_MEMORY", events)
    with Launch(task("kills_itself", int(signal.SIGKILL)), {}) as process:
        events.write_text("low 0\noom 4\noom_kill 4\n")
        with pytest.raises(AuthorError, match="was killed for want of memory on host 2"):
            process.wait(lambda: None)
    with pytest.raises(LostError):
        finish(task("kills_itself", int(signal.SIGKILL)))


def is_over(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_it_leaves_running_is_ended(wares):
    child = finish(task("strays"))
    wait_for(lambda: is_over(child))


def test_a_program_that_has_answered_and_does_not_end_is_ended(wares):
    (wares / "program_wares.py").write_text(
        "import threading, time\ndef hangs():\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    return 5\n"
    )
    with Launch(task("hangs"), {}) as process:
        assert process.wait(lambda: 0.0 if process.answered else None) == 5


def test_it_does_not_outlive_whoever_started_it(wares, tmp_path):
    (wares / "program_wares.py").write_text(
        "import os, time\ndef waits(path):\n    with open(path, 'w') as out: out.write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    mark = tmp_path / "mark"
    start = "import json, sys; from airflow_raytpu.runtime.launch import Launch\n"
    start += "with Launch(json.loads(sys.argv[1]), {}, sys.argv[2]) as process: process.wait(lambda: None)"
    told = [json.dumps(task("waits", str(mark))), str(tmp_path)]  # the folder that a killed starter leaves lies there
    starter = subprocess.Popen([sys.executable, "-c", start, *told], cwd=wares)
    pid = wait_for(lambda: mark.exists() and int(mark.read_text() or 0))
    starter.kill()
    starter.wait()
    wait_for(lambda: is_over(pid))
