"""``.ci/tests.py`` with a pytest that only pretends: no test is run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "tests.py"
BESIDE = "-n logical --maxprocesses 4 --dist worksteal"

# Notes what it is asked; tells and answers what is laid out for the unit tests, or for the others.
PYTEST = """#!/bin/sh
cd "$(dirname "$0")"
printf '%s\\n' "$*" >> asked
case "$*" in *ignore*) part=others ;; *) part=unit ;; esac
[ ! -e "$part.told" ] || cat "$part.told" > "$TESTS_TOLD"
kill -s "$(cat "$part.signal")" $$
exit "$(cat "$part.status")"
"""


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("tests_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(script, tmp_path, monkeypatch, capfd):
    fake = tmp_path / "pytest"
    fake.write_text(PYTEST)
    fake.chmod(0o755)
    monkeypatch.setattr(script, "PYTEST", (str(fake),))

    def made(*arguments, unit=("", 0), others=("", 0)):
        """The status, the lines from the sum on, and what pytest was asked."""
        for part, (told, status) in (("unit", unit), ("others", others)):
            if told:
                (tmp_path / f"{part}.told").write_text(told)
            (tmp_path / f"{part}.signal").write_text(status if isinstance(status, str) else "0")
            (tmp_path / f"{part}.status").write_text(str(status))
        found = script.main(list(arguments))
        said = capfd.readouterr()
        assert said.err == ""
        lines = said.out.partition("Both parts together:\n")[2].splitlines()
        return found, lines, (tmp_path / "asked").read_text().splitlines()

    return made


def test_the_whole_suite_is_two_parts_and_one_sum(run):
    status, lines, asked = run(
        "tests",
        unit=("5000 passed\n2 skipped\n3 warnings\n", 0),
        others=("300 passed\n1 skipped\n40 deselected\n1 warning\n", 0),
    )
    assert (status, len(lines)) == (0, 1)
    assert lines[0].strip("=").startswith(" 5300 passed, 3 skipped, 40 deselected, 4 warnings in ")
    assert re.search(r"^=+ .* in \d+\.00s \(\d:\d\d:\d\d\) =+$", lines[0])
    assert asked == [f"{BESIDE} tests/unit", "tests --ignore=tests/unit"]


@pytest.mark.parametrize(
    ("unit", "others", "status", "said"),
    [
        (("1 failed\n4 passed\nFAILED a::b\n", 1), ("3 passed\n", 0), 1, ["FAILED a::b", "1 failed, 7 passed"]),
        (("4 passed\n", 0), ("1 error\nERROR c.py\n", 2), 2, ["ERROR c.py", "4 passed, 1 error"]),
        (("1 error\nERROR a\n", 1), ("1 error\nERROR b\n", 1), 1, ["ERROR a", "ERROR b", "2 errors"]),
        (("4 passed\n", 0), ("", 4), 4, ["4 passed, 1 error"]),
        (("4 passed\n", 0), ("", "KILL"), 137, ["4 passed, 1 error"]),
        (("4 passed\n", 3), ("5 passed\n", 0), 3, ["9 passed, 1 error"]),
        (("no tests ran\n", 5), ("no tests ran\n", 5), 5, ["no tests ran"]),
    ],
)
def test_what_ends_badly_in_either_part_is_in_the_sum_and_in_the_status(run, unit, others, status, said):
    found, lines, asked = run("tests", unit=unit, others=others)
    assert (found, len(asked)) == (status, 2)
    assert lines[:-1] == said[:-1]
    assert f"= {said[-1]} in " in lines[-1]


@pytest.mark.parametrize("how", [2, "TERM"])
def test_nothing_is_begun_after_an_end_from_outside(run, how):
    status, lines, asked = run("tests", unit=("7 passed\n", how))
    assert (status, len(asked)) == (2 if how == 2 else 143, 1)
    assert "= 7 passed, 1 error in " in lines[-1]


@pytest.mark.parametrize("arguments", [["tests/unit/model"], ["tests", "-k", "x"], ["tests/dags", "tests/unit"], []])
def test_a_part_of_the_suite_is_pytests_own(run, arguments):
    assert run(*arguments, unit=("", 1)) == (1, [], [" ".join(arguments)])


def test_the_unit_tests_alone_run_beside_one_another(run):
    status, lines, asked = run("tests/unit", unit=("", 1))
    assert (status, lines, asked) == (1, [], [f"{BESIDE} tests/unit"])


def test_whoever_is_asked_to_end_ends_pytest_first(tmp_path):
    (tmp_path / "pytest.py").write_text(
        "import os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))\n"
        "pathlib.Path('begun').touch()\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "signal.sigtimedwait([], 60)\n"
        "pathlib.Path('missed').touch()\n"
    )
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "tests"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "no other test was begun" in done.stdout
    assert (tmp_path / "begun").exists()
    assert not (tmp_path / "missed").exists()
