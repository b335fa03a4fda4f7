"""The demo's ``airflow.cfg``. A file, so that any shell with its AIRFLOW_HOME can talk to the demo."""

from __future__ import annotations

import base64
import configparser
import json
import os
import secrets
from pathlib import Path

from airflow_raytpu.demo.home import DemoHome

USER = "admin"

_LETTERS = "abcdefghjkmnpqrstuvwxyz"


def write(home: DemoHome) -> str:
    """Write the configuration and fresh secrets, readable by their owner only; returns the UI's password."""
    password = "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(3))
    passwords = home.airflow / "passwords.json"
    _write_private(passwords, json.dumps({USER: password}))
    _write_private(home.airflow / "airflow.cfg", render(sections(home, passwords)))
    return password


def sections(home: DemoHome, passwords: Path) -> dict[str, dict[str, str]]:
    """What differs from Airflow's defaults: delays cut where it is safe, and nothing that a demo has no use for."""
    return {
        "core": {
            "dags_folder": str(home.dags),
            "load_examples": "False",
            "executor": "LocalExecutor",
            # Each slot is a process from the start on.
            "parallelism": "4",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(passwords),
            "execution_api_server_url": f"http://127.0.0.1:{home.port}/execution/",
            "fernet_key": _kept_key(home) or base64.urlsafe_b64encode(os.urandom(32)).decode(),
        },
        "api": {
            "host": "127.0.0.1",
            "port": str(home.port),
            "base_url": home.url,
            "workers": "1",
            "secret_key": secrets.token_hex(32),
        },
        "api_auth": {"jwt_secret": secrets.token_hex(32)},
        # A loop costs 20 ms: one second of idling, the default, is what a task mostly waits for.
        "scheduler": {"scheduler_idle_sleep_time": "0.3"},
        # A worker notices the end of a task's process only so often.
        "workers": {"min_heartbeat_interval": "2"},
        "dag_processor": {"parsing_processes": "1", "min_file_process_interval": "60"},
        "raytpu": {"storage": home.storage.as_uri(), "deployment": "demo", "poll_interval": "1.0"},
    }


def render(parts: dict[str, dict[str, str]]) -> str:
    """*parts* as a file for Airflow, which interpolates ``%``."""
    lines = ["# Written by airflow-raytpu demo; written anew each time."]
    for name, options in parts.items():
        lines += ["", f"[{name}]", *(f"{key} = {value.replace('%', '%%')}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def _kept_key(home: DemoHome) -> str:
    """The key that a database which is kept is encrypted with; empty for a new one."""
    before = configparser.ConfigParser()
    before.read(home.airflow / "airflow.cfg")
    return before.get("core", "fernet_key", fallback="")


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
