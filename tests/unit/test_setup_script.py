"""``.ci/setup.sh`` with interpreters that only pretend: nothing is installed, nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "setup.sh"

# Answers as Python would; makes a .venv whose interpreter is itself and whose uv writes down what it was asked.
PYTHON = """#!/bin/sh
case "$*" in
    *sys.version_info\\[*) echo "$FAKE_VERSION" ;;
    *base_prefix*) cat "$(dirname "$0")/prefix" 2>/dev/null || echo "$0" ;;
    *"import venv"*) [ -z "$FAKE_NO_VENV" ] ;;
    *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo "$0" > .venv/bin/prefix ;;
    *"pip install"*)
        [ -z "$FAKE_NO_NETWORK" ] || exit 1
        printf '#!/bin/sh\\necho "$@" >> asked\\n' > .venv/bin/uv
        chmod +x .venv/bin/uv ;;
    *"pip config"*) echo "$FAKE_INDEX" ;;
    -V) echo "Python $FAKE_VERSION" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in a path with spaces, and a PATH with nothing but what the script may use."""
    place = tmp_path / "a b"
    (place / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        (place / name).touch()
    for tool in ("sh", "cat", "cksum", "awk", "df", "mkdir", "cp", "chmod", "rm", "dirname"):
        found = shutil.which(tool)
        assert found
        (place / "bin" / tool).symlink_to(found)
    return place


def _python(clone: Path, name: str = "python3.11") -> None:
    (clone / "bin" / name).write_text(PYTHON)
    (clone / "bin" / name).chmod(0o755)


def _run(clone: Path, *groups: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), *groups],
        cwd=clone,
        env={"PATH": str(clone / "bin"), "FAKE_VERSION": "3.11.7", "HOME": str(clone), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_installs_once(clone: Path):
    _python(clone)
    first = _run(clone, "test")
    assert first.returncode == 0, first.stderr
    (asked,) = (clone / "asked").read_text().splitlines()
    assert asked.endswith("--compile-bytecode -c constraints.txt --group test -e .[demo]")
    second = _run(clone, "test")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert _run(clone).returncode == 0
    assert len((clone / "asked").read_text().splitlines()) == 1


@pytest.mark.parametrize("change", ["constraints.txt", "another group", "moved"])
def test_it_installs_again_when_something_changed(clone: Path, change: str):
    _python(clone)
    _run(clone)
    if change == "constraints.txt":
        (clone / change).write_text("x==1\n")
    if change == "moved":
        clone = clone.rename(clone.with_name("c d"))
    done = _run(clone, *(["docs"] if change == "another group" else []))
    assert done.returncode == 0, done.stderr
    assert len((clone / "asked").read_text().splitlines()) == 2


def test_another_python_gets_a_new_environment(clone: Path):
    _python(clone)
    _python(clone, "other")
    chosen = str(clone / "bin" / "other")
    assert _run(clone).returncode == 0
    done = _run(clone, PYTHON=chosen)
    assert f"Creating .venv with Python 3.11.7 ({chosen})" in done.stderr
    assert _run(clone, PYTHON=chosen).stderr == ""
    assert _run(clone).stderr == ""


def test_an_environment_that_somebody_made_here_is_used_as_it_is(clone: Path):
    _python(clone)
    assert _run(clone).returncode == 0
    (clone / ".venv" / ".place").unlink()
    (clone / ".venv" / "mine").touch()
    (clone / "constraints.txt").write_text("x==1\n")
    assert "Creating" not in _run(clone).stderr
    assert (clone / ".venv" / "mine").exists()


def test_no_python_at_all(clone: Path):
    done = _run(clone)
    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed. Looked at: nothing that runs: python3.11 python3.12" in done.stderr


def test_a_wrong_python_is_named_with_its_version(clone: Path):
    _python(clone, "python3")
    done = _run(clone, FAKE_VERSION="3.10.12")
    assert done.returncode == 1
    assert "  python3 is 3.10.12\n" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_chosen_python_is_the_only_one_looked_at(clone: Path):
    _python(clone)
    done = _run(clone, PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "nothing that runs: /no/such/python" in done.stderr


def test_a_python_without_venv_is_told_with_the_cure(clone: Path):
    _python(clone)
    done = _run(clone, FAKE_NO_VENV="1")
    assert done.returncode == 1
    assert "python3.11 is 3.11.7, without the modules venv and ensurepip (on Debian: apt install python3.11-venv)" in (
        done.stderr
    )


def test_a_full_disk(clone: Path):
    _python(clone)
    (clone / "bin" / "df").unlink()
    (clone / "bin" / "df").write_text("#!/bin/sh\necho Filesystem\necho /dev/x 100 50 50000 50% /\n")
    (clone / "bin" / "df").chmod(0o755)
    done = _run(clone)
    assert done.returncode == 1
    assert f"50 MB are free in {clone}; installing needs 3000 MB." in done.stderr
    assert not (clone / ".venv").exists()


def test_no_network(clone: Path):
    _python(clone)
    done = _run(clone, FAKE_NO_NETWORK="1")
    assert done.returncode == 1
    assert "Installing failed" in done.stderr
    assert not (clone / ".venv" / ".stamp-demo").exists()


def test_an_index_set_for_pip_is_used(clone: Path):
    _python(clone)
    index = "http://mirror.example/simple"
    done = _run(clone, FAKE_INDEX=index)
    assert done.returncode == 0, done.stderr
    # The fake uv cannot show its environment, so a second group asks one that can.
    (clone / ".venv" / "bin" / "uv").write_text('#!/bin/sh\necho "$UV_DEFAULT_INDEX" > index\n')
    assert _run(clone, "docs", FAKE_INDEX=index).returncode == 0
    assert (clone / "index").read_text().strip() == index


def test_outside_the_clone(tmp_path: Path):
    done = subprocess.run(
        ["sh", str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "there is no pyproject.toml" in done.stderr
