"""Simulated clusters as folders: start or adopt one, attach to it, stop it, clear away dead ones. Never imports Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_raytpu.backends.simulated import state
from airflow_raytpu.backends.simulated.claims import folder_claim
from airflow_raytpu.backends.simulated.folder import Cluster
from airflow_raytpu.backends.simulated.processes import MARK, end, members, wait_until
from airflow_raytpu.backends.simulated.state import Arrivals, Phase, Record
from airflow_raytpu.model.errors import ClusterError, ForeignObjectError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.topology import TpuSlice

_FOLDER_LIMIT = 64
"""Longest folder, in bytes: sockets below it take up to 42 more, and a Unix socket's path ends at 107."""

_REGISTER_WITHIN_S = 30.0
_STOP_WITHIN_S = 45.0
_KILL_WITHIN_S = 20.0
_YOUNG_S = 60.0


def root_folder(root: Path | None = None) -> Path:
    """The private folder that holds all clusters of this user: *root*, ``$RAYTPU_SIM_ROOT`` or ``/tmp/raytpu-<uid>``.

    :raises ClusterError: it cannot be made, or others could write in it.
    """
    path = root or Path(os.environ.get("RAYTPU_SIM_ROOT") or f"/tmp/raytpu-{os.getuid()}")  # noqa: S108 - checked below
    path = path.expanduser().absolute()
    lever = "Set RAYTPU_SIM_ROOT to a private folder with a short path."
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = path.lstat()
    except OSError as error:
        raise ClusterError(f"{path} cannot be made: {error}.", lever) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise ClusterError(f"{path} is not a folder that only user {os.getuid()} can write.", lever)
    return path


def attach(root: Path, name: str) -> Cluster | None:
    """The cluster *name*, ``None`` where there is none.

    :raises ClusterError: something else is in its place.
    """
    record = state.read(root / name)
    return Cluster(root / name, record) if record is not None else None


def living(root: Path) -> list[Cluster]:
    """The clusters under *root* that serve or will; what is no cluster of this version is passed over."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(ClusterError):
            each = attach(root, folder.name)
            if each is not None and each.serves:
                found.append(each)
    return found


def start(root: Path, request: RayRequest, also: Sequence[str] = (), arrivals: Arrivals | None = None) -> Cluster:
    """Create the cluster of *request*, or adopt it where the same owner has created it already.

    :param also: further slices beside the requested one, for trying out what happens on clusters of mixed shapes.
    :param arrivals: how its slices come and come back; what the environment says where left out.
    :raises SliceShapeError: there is no such further slice.
    :raises ForeignObjectError: another owner has the name.
    :raises ClusterError: it cannot be created here.
    """
    name, owner = request.cluster_name, request.identity.owner()
    found = attach(root, name)
    if found is not None and found.record.owner == owner and found.lost:
        remove(found)
        found = None
    if found is None:
        _check(root / name)
        _claim(root, request, also, arrivals or Arrivals.of(os.environ))
        found = attach(root, name)
        if found is None:
            raise ClusterError(f"Cluster {name} was removed while it was being created.")
    if found.record.owner != owner:
        raise ForeignObjectError(
            f"Cluster {name} belongs to {found.record.owner}, not to {owner}.",
            "Wait until its owner has deleted it, or give this task another name.",
        )
    # Also the second time: who claimed the folder may have died before this line.
    if found.record.supervisor is None:
        _spawn(found)
    found.beat()
    return found


def remove(found: Cluster, within_s: float = _STOP_WITHIN_S) -> None:
    """End every process of the cluster and remove its folder; returns when both are gone.

    :raises ClusterError: a process or the folder resists.
    """
    held = folder_claim(found.folder)
    if held is None:
        _ask_to_stop(found, within_s)
        held = folder_claim(found.folder, within_s=_KILL_WITHIN_S)
        if held is None:
            raise ClusterError(
                f"Cluster {found.record.name} does not end within {within_s:.0f} s.", "See its supervisor.log."
            )
    with held:
        # The folder may be a new cluster's by now.
        if (now := state.read(found.folder)) is None or now.uid != found.record.uid:
            return
        left = end(lambda: list(members(found.record.uid, found.folder)), _KILL_WITHIN_S)
        if left:
            raise ClusterError(f"Processes of cluster {found.record.name} do not end: {[each.pid for each in left]}.")
        discard(found.folder)


def sweep(root: Path) -> list[str]:
    """Remove clusters whose supervisor has died, with what is left of their processes; the names of those removed.

    A failed cluster stays readable for its TTL. What is not a cluster is left alone.
    """
    removed = []
    for folder in sorted(root.iterdir()):
        if folder.name.startswith(".trash-"):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            found = attach(root, folder.name)
        except ClusterError:
            continue
        if found is not None and _dead(found):
            remove(found)
            removed.append(folder.name)
    return removed


def discard(folder: Path) -> None:
    """Take *folder* away in one step, so that nobody ever sees half of it, then free its space."""
    trash = folder.with_name(f".trash-{folder.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def short_name(name: str) -> str:
    """*name* without the hash at its end: what a slice is called after, for people."""
    return name.rpartition("-")[0][:24].strip("-") or name


def _dead(found: Cluster) -> bool:
    try:
        silent_s = time.time() - (found.folder / "heartbeat").stat().st_mtime
    except FileNotFoundError:
        return False
    if found.record.phase is Phase.FAILED:
        return silent_s > found.record.ttl_s
    # Who created it may be about to start its supervisor.
    return bool(found.lost) or (found.record.supervisor is None and silent_s > _YOUNG_S)


def _check(folder: Path) -> None:
    if sys.platform != "linux":
        raise ClusterError(
            f"Simulated slices need Linux; this is {sys.platform}.", "Use a raytpu connection to a cluster."
        )
    if len(os.fsencode(folder)) > _FOLDER_LIMIT:
        raise ClusterError(
            f"{folder} is {len(os.fsencode(folder))} bytes long; {_FOLDER_LIMIT} leave room for Unix sockets.",
            "Set RAYTPU_SIM_ROOT to a shorter path.",
        )
    if importlib.util.find_spec("ray") is None:
        raise ClusterError("Simulated slices need Ray, which is not installed.", "pip install 'airflow-raytpu[local]'")


def _claim(root: Path, request: RayRequest, also: Sequence[str], arrivals: Arrivals) -> None:
    """Fill a folder under another name, then rename it: the first to do so has the cluster, and nobody sees half."""
    folder = root / request.cluster_name
    record = _first_record(request, folder, also, arrivals)
    new = root / f".new-{secrets.token_hex(8)}"
    try:
        for part in (new, new / "home", new / "t", new / "jobs"):
            part.mkdir(mode=0o700)
        state.write_private(new / "token", secrets.token_hex(32))
        state.write_private(new / "request.json", json.dumps(request.to_dict()))
        (new / "heartbeat").touch()
        state.write(new, record)
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        if not folder.is_dir():
            raise ClusterError(f"{folder} cannot be made: {error}.", "Free space, or set RAYTPU_SIM_ROOT.") from error


def _first_record(request: RayRequest, folder: Path, also: Sequence[str], arrivals: Arrivals) -> Record:
    return Record(
        name=request.cluster_name,
        uid=secrets.token_hex(8),
        owner=request.identity.owner(),
        identity=request.identity.to_dict(),
        slice=request.slice,
        also=tuple(str(TpuSlice.parse(text)) for text in also),
        arrivals=arrivals,
        ttl_s=request.ttl_s,
        created_at=time.time(),
        token_path=str(folder / "token"),
        detail="waiting for its supervisor",
    )


def _spawn(found: Cluster) -> None:
    with (found.folder / "supervisor.log").open("ab") as log:
        subprocess.Popen(  # noqa: S603 - our own module
            [_interpreter(found.folder), "-m", "airflow_raytpu.backends.simulated.supervisor", str(found.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: found.record.uid},
            cwd=found.folder,
            start_new_session=True,
        )


def _interpreter(folder: Path) -> str:
    """The interpreter that runs now, under a name without blanks.

    Ray hands a worker's command to ``bash -c`` unquoted (2.60, ``runtime_env/context.py``), so that no worker would
    ever start in an environment that lies in a path with spaces; a link to the environment lies in *folder*.
    """
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    link = folder / "venv"
    if not link.is_symlink():
        link.symlink_to(sys.prefix)
    return str(link / "bin" / Path(sys.executable).name)


def _ask_to_stop(found: Cluster, within_s: float) -> None:
    """Ask the living supervisor to end its cluster, then make it."""

    def registered() -> bool:
        now = state.read(found.folder)
        return now is None or now.supervisor is not None

    wait_until(registered, _REGISTER_WITHIN_S)
    now = state.read(found.folder)
    if now is None or now.supervisor is None or now.uid != found.record.uid:
        return
    supervisor = now.supervisor
    supervisor.signal(signal.SIGTERM)
    if not wait_until(lambda: not supervisor.alive(), within_s):
        supervisor.signal(signal.SIGKILL)
