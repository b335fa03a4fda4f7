from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from airflow_raytpu import __version__, cli


def test_version_and_help():
    assert CliRunner().invoke(cli.commands, ["--version"]).output == f"airflow-raytpu, version {__version__}\n"
    assert "--clean" in CliRunner().invoke(cli.commands, ["demo", "-h"]).output


def test_cleaning_where_nothing_is(tmp_path: Path):
    result = CliRunner().invoke(cli.commands, ["demo", "--clean", "--home", str(tmp_path / ".demo")])
    assert (result.exit_code, result.output) == (0, "Nothing of the demo is left.\n")
    assert not (tmp_path / ".demo").exists()


def test_an_error_of_ours_has_no_traceback(tmp_path: Path):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "airflow_raytpu.cli", "demo", "--port", "0", "--home", str(tmp_path / "file" / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "[RT103]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_light():
    heavy = {"airflow", "ray", "jax", "numpy", "rich", "psutil"}
    code = f"import sys, airflow_raytpu.cli; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
