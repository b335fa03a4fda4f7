from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from airflow_raytpu.demo import checks
from airflow_raytpu.model.errors import PathError, RequestError


def test_a_taken_port_is_told_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        shown = re.escape(" ".join(psutil.Process().cmdline())[:80])
        with pytest.raises(RequestError, match=rf"Port {port} is taken by pid {os.getpid()} \({shown}\)\.") as caught:
            checks.choose_port(port)
    assert "--port" in caught.value.lever


def test_any_free_port():
    assert checks.choose_port(0) > 0
    port = checks.choose_port(0)
    assert checks.choose_port(port) == port


def test_a_full_disk_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000_000))
    with pytest.raises(PathError, match=rf"0\.0 GB are free in {tmp_path}; the demo needs 1 GB"):
        checks.check_disk(tmp_path)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "_WANTED_MODULES", ("json", "no_such_package.part", "no_such_module"))
    with pytest.raises(RequestError, match=r"needs no_such_package\.part, no_such_module, not installed"):
        checks.check_platform()


def test_short_memory_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks.psutil, "virtual_memory", lambda: SimpleNamespace(available=2e9))
    assert "2.0 GB of memory" in checks.memory_warning()
    monkeypatch.setattr(checks.psutil, "virtual_memory", lambda: SimpleNamespace(available=9e9))
    assert checks.memory_warning() == ""
