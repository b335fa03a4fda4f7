from __future__ import annotations

import pytest

from airflow_raytpu.backends import rayjobs
from airflow_raytpu.backends.kuberay import own


@pytest.fixture(autouse=True)
def looking_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to end has ended by the second look here, which real clusters are given a second for."""
    monkeypatch.setattr(rayjobs, "_POLL_S", 0.01)
    monkeypatch.setattr(own, "_GONE_POLL_S", 0.01)
