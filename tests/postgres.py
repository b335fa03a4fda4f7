"""A PostgreSQL server of a test's own, from the programs that the system has: Debian's package ``postgresql``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.simulated_cluster import short_folder, wait_for

USER = "airflow"
DATABASE = "postgres"
_DRIVERS = ("psycopg2", "asyncpg")
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # What a test writes need not outlive the machine.
    "fsync": "off",
    "max_connections": "200",
}


def missing() -> str:
    """What keeps a server from being started here, for people; empty where nothing does."""
    lacking = [name for name in _DRIVERS if importlib.util.find_spec(name) is None]
    if lacking:
        return f"Airflow cannot speak to PostgreSQL: {' and '.join(lacking)} not installed."
    absent = [name for name in ("pg_ctl", "setpriv") if shutil.which(name) is None]
    return f"PostgreSQL cannot be started: {' and '.join(absent)} not on the PATH." if absent else ""


def settings(port: int) -> dict[str, str]:
    """Airflow's environment with the server that listens on *port* of this machine."""
    address = f"{USER}@127.0.0.1:{port}/{DATABASE}"
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{address}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://{address}",
    }


@contextlib.contextmanager
def better_database() -> Iterator[dict[str, str]]:
    """Airflow's environment with a server where one can be had, and with Airflow's default, SQLite, elsewhere.

    With dozens of tasks that begin and end at once SQLite is locked again and again, and all of it takes longer.
    """
    if missing():
        yield {}
        return
    with running_postgres() as port:
        yield settings(port)


@contextlib.contextmanager
def running_postgres() -> Iterator[int]:
    """The port on the loopback interface of a server with an empty database, open to everybody on this machine."""
    programs = Path(shutil.which("pg_ctl") or "").resolve().parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with short_folder() as folder:
        data, prefix = folder / "data", _without_privileges(folder)
        make = [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync"]
        subprocess.run([*prefix, *make], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        serve = [programs / "postgres", "-D", data, "-p", str(port), *options]
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen([*prefix, *serve], stdout=log, stderr=log, cwd=folder)
        try:
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, 60)
            yield port
        finally:
            # An immediate shutdown: connections that are still there would hold a friendly one up.
            server.send_signal(signal.SIGQUIT)
            server.wait(30)


def _without_privileges(folder: Path) -> list[str]:
    """What to put before a command that works in *folder*: the server refuses to be root's, and ends with this test."""
    ends = ["setpriv", "--pdeathsig", "QUIT"]
    if os.geteuid() != 0:
        return ends
    names = {each.pw_name: each for each in pwd.getpwall()}
    who = names.get("postgres") or names["nobody"]
    os.chown(folder, who.pw_uid, who.pw_gid)
    return [*ends, "--reuid", str(who.pw_uid), "--regid", str(who.pw_gid), "--clear-groups"]
