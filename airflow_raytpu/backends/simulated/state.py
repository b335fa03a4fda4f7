"""What is written down about one simulated cluster, so that any process can attach to it."""

from __future__ import annotations

import enum
import json
import math
import secrets
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from airflow_raytpu.backends.simulated.processes import ProcessId
from airflow_raytpu.model.errors import ClusterError

VERSION = 1

_TTL = "ttl"
"""File of the times to live that were asked for later, a line each: the state itself is the supervisor's to write."""

HEAL_S = 10.0
"""Seconds until a lost slice is made anew where nobody says otherwise; GKE takes minutes."""


class Phase(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One simulated TPU host.

    :param launcher: the process that owns its Ray processes and dies with them; ``None`` before it runs.
    :param raylet: pid of its raylet, 0 before it runs.
    """

    worker_id: int
    ip: str
    launcher: ProcessId | None = None
    raylet: int = 0
    alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How slices come, and come back, as those of a cloud do.

    :param heal_s: seconds from the loss of a host until its slice is made anew, as a whole and under another name;
        ``None`` for never.
    :param late: how many of the slices, the last ones, come after the cluster; ``None`` for all.
    :param late_s: how many seconds after; ``None`` for not before the supervisor gets SIGUSR1, which has it make at
        once whatever is awaited.
    """

    heal_s: float | None = None
    late: int | None = 0
    late_s: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Arrivals:
        """As ``RAYTPU_SIM_HEAL_S`` and ``RAYTPU_SIM_LATE_S`` say: seconds, or ``never``.

        :raises ClusterError: one of them is neither.
        """
        heal_s = _seconds(environment, "RAYTPU_SIM_HEAL_S", HEAL_S)
        late = None if environment.get("RAYTPU_SIM_LATE_S") else 0
        return cls(heal_s=heal_s, late=late, late_s=_seconds(environment, "RAYTPU_SIM_LATE_S"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One simulated slice.

    :param shape: canonical slice text.
    :param awaited: why it is not there and will come, for people; empty where it is there, or never comes.
    """

    name: str
    shape: str
    chips_per_host: int
    hosts: tuple[Host, ...]
    awaited: str = ""

    @property
    def whole(self) -> bool:
        return all(host.alive for host in self.hosts)

    @property
    def loss(self) -> str:
        """Which hosts it lost, for people; empty where it is whole."""
        missing = [str(host.worker_id) for host in self.hosts if not host.alive]
        return f"lost host {', '.join(missing)} of {len(self.hosts)}" if missing else ""

    @property
    def fault(self) -> str:
        """What is wrong with it, for people; empty where it is whole."""
        why = self.awaited or self.loss
        return f"slice {self.name} {why}" if why else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One cluster, as its ``state.json`` says.

    :param owner: ``Identity.owner()`` of who asked for it; ``identity`` is the same in full.
    :param slice: canonical text of what was asked for; ``also`` of further slices beside it.
    :param supervisor: ``None`` until it runs.
    :param address: ``ip:port`` of the head's GCS; the three addresses are empty until they are chosen.
    :param endpoint: base URL on which Serve must listen.
    :param detail: for people: what it waits for, or why it failed.
    """

    name: str
    uid: str
    owner: str
    identity: Mapping[str, Any]
    slice: str
    ttl_s: float
    created_at: float
    token_path: str
    also: tuple[str, ...] = ()
    arrivals: Arrivals = Arrivals()
    phase: Phase = Phase.STARTING
    supervisor: ProcessId | None = None
    address: str = ""
    dashboard: str = ""
    endpoint: str = ""
    slices: tuple[Slice, ...] = ()
    detail: str = ""
    version: int = VERSION

    def facts(self) -> dict[str, Any]:
        """What a ready cluster offers, as :class:`~airflow_raytpu.model.observation.Observation` carries it."""
        return {
            "name": self.name,
            "address": self.address,
            "dashboard": self.dashboard,
            "endpoint": self.endpoint,
            "slices": [
                {
                    "name": part.name,
                    "hosts": len(part.hosts),
                    "chips": len(part.hosts) * part.chips_per_host,
                    "whole": part.whole,
                }
                for part in self.slices
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        return cls(
            **{
                **data,
                "phase": Phase(data["phase"]),
                "also": tuple(data["also"]),
                "arrivals": Arrivals(**data["arrivals"]),
                "supervisor": _process(data["supervisor"]),
                "slices": tuple(_slice(part) for part in data["slices"]),
            }
        )

    def with_slice(self, index: int, **changes: Any) -> Record:
        """The record with one slice changed."""
        changed = replace(self.slices[index], **changes)
        return replace(self, slices=(*self.slices[:index], changed, *self.slices[index + 1 :]))

    def with_host(self, slice_index: int, worker_id: int, **changes: Any) -> Record:
        """The record with one host changed."""
        hosts = self.slices[slice_index].hosts
        changed = (replace(host, **changes) if host.worker_id == worker_id else host for host in hosts)
        return self.with_slice(slice_index, hosts=tuple(changed))


def raised_ttl(folder: Path, ttl_s: float) -> float:
    """Seconds without a sign of life that the cluster in *folder* outlives: *ttl_s*, or more where that was asked."""
    try:
        asked = [float(line) for line in (folder / _TTL).read_text().splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return ttl_s
    return max([ttl_s, *asked])


def raise_ttl(folder: Path, ttl_s: float) -> None:
    """Let the cluster in *folder* live so long; it is never lowered, whoever asks at the same time."""
    with (folder / _TTL).open("a") as file:
        file.write(f"{ttl_s}\n")


def read(folder: Path) -> Record | None:
    """The cluster in *folder*; ``None`` where there is no such folder.

    :raises ClusterError: the folder is not a cluster of this version, or its state cannot be read.
    """
    path = folder / "state.json"
    try:
        text = _text_of(path)
        if text is None and folder.exists():
            # Folders appear and go whole, by renaming: it may have come since the first look.
            text = _text_of(path)
            if text is None and folder.exists():
                raise _foreign(folder, "it has no state.json")
    except OSError as error:
        raise _foreign(folder, str(error)) from error
    if text is None:
        return None
    try:
        record = Record.from_dict(json.loads(text))
        return replace(record, ttl_s=raised_ttl(folder, record.ttl_s))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(folder, f"state.json says {text[:40]!r} ({error})") from error


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(folder: Path, record: Record) -> None:
    """Replace the state of *folder*, whole or not at all.

    :raises ClusterError: it cannot be written.
    """
    write_private(folder / "state.json", json.dumps(record.to_dict(), indent=1))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all.

    :raises ClusterError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        new.touch(mode=stat.S_IRUSR | stat.S_IWUSR)
        new.write_text(text)
        new.replace(path)
    except OSError as error:
        raise ClusterError(f"{path} cannot be written: {error}.", "Free space, or set RAYTPU_SIM_ROOT.") from error


def _foreign(folder: Path, why: str) -> ClusterError:
    return ClusterError(
        f"{folder} is not a simulated cluster of this version: {why}.", f"Remove {folder} if nothing needs it."
    )


def _seconds(environment: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    """Seconds, ``None`` for ``never``, *default* where nothing is said."""
    text = environment.get(name, "")
    if not text:
        return default
    if text == "never":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ClusterError(
            f"{name} is {text!r}, which is no number of seconds.", f"Set {name} to seconds, or to never."
        )
    return seconds


def _process(data: Mapping[str, Any] | None) -> ProcessId | None:
    return ProcessId(**data) if data else None


def _slice(data: Mapping[str, Any]) -> Slice:
    hosts = tuple(Host(**{**host, "launcher": _process(host["launcher"])}) for host in data["hosts"])
    return Slice(**{**data, "hosts": hosts})
