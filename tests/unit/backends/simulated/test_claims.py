from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_raytpu.backends.simulated import claims
from airflow_raytpu.backends.simulated.claims import Machine, claim, folder_claim
from airflow_raytpu.model.errors import ClusterError


def test_a_name_has_one_holder_at_a_time() -> None:
    name = f"test/{os.getpid()}"
    held = claim(name)
    assert held is not None
    assert claim(name) is None
    held.close()
    again = claim(name)
    assert again is not None
    again.close()


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    script = "from pathlib import Path; from airflow_raytpu.backends.simulated.claims import folder_claim\n"
    script += f"held = folder_claim(Path({str(tmp_path)!r})); print(held is not None, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert folder_claim(tmp_path) is None
        other.kill()
    held = folder_claim(tmp_path)
    assert held is not None
    held.close()


def test_one_folder_has_one_claim_whatever_its_spelling(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    held = folder_claim(tmp_path)
    assert held is not None
    assert folder_claim(tmp_path / "link") is None
    held.close()


def test_machines_share_neither_blocks_nor_ports() -> None:
    one, other = Machine(), Machine()
    blocks = [machine.block() for machine in (one, other) for _ in range(20)]
    ports = [machine.port() for machine in (one, other) for _ in range(20)]
    assert len(set(blocks)) == len(set(ports)) == 40
    assert all(16 <= int(block.split(".")[1]) <= 254 for block in blocks)


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(claims, "_PORTS", range(port, port + 1))
        with pytest.raises(ClusterError, match=str(port)):
            Machine().port()
