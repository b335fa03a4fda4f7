"""One simulated cluster as any process finds it: its folder, and what is written there."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from airflow_raytpu.backends.simulated import state
from airflow_raytpu.backends.simulated.state import Phase, Record
from airflow_raytpu.model.errors import BackendUnreachable


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster's folder and what its state said when it was read."""

    folder: Path
    record: Record

    @property
    def lost(self) -> str:
        """Why it can never serve again though its state does not say so; empty where it lives or will."""
        supervisor = self.record.supervisor
        if supervisor is None or self.record.phase is Phase.FAILED or supervisor.alive():
            return ""
        return f"The supervisor of cluster {self.record.name} (pid {supervisor.pid}) died."

    @property
    def serves(self) -> bool:
        """Whether it is up, or coming up."""
        return self.record.phase in {Phase.STARTING, Phase.READY} and not self.lost

    def token(self) -> str:
        """:raises BackendUnreachable: the cluster has just gone."""
        try:
            return (self.folder / "token").read_text()
        except OSError as error:
            raise BackendUnreachable(f"The token of cluster {self.record.name} cannot be read: {error}.") from error

    def beat(self) -> None:
        """Show the supervisor that somebody still wants the cluster."""
        with contextlib.suppress(FileNotFoundError):  # it is just being removed
            os.utime(self.folder / "heartbeat")

    @property
    def creator(self) -> str:
        """Storage of the request that made it; empty where it has just gone."""
        with contextlib.suppress(FileNotFoundError):
            return str(json.loads((self.folder / "request.json").read_text())["storage"])
        return ""

    def outlive(self, ttl_s: float) -> None:
        """Let it live for at least *ttl_s* seconds without a sign of life; infinity is until it is removed."""
        with contextlib.suppress(FileNotFoundError):  # it is just being removed
            if ttl_s > self.record.ttl_s:
                state.raise_ttl(self.folder, ttl_s)

    def submitter(self, job: str) -> str:
        """Owner of *job* where it was once accepted here, so that its absence means loss; empty where it was not."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "jobs" / job).read_text()
        return ""

    def note_submitted(self, job: str, owner: str) -> None:
        if (self.folder / "jobs").is_dir():
            state.write_private(self.folder / "jobs" / job, owner)
