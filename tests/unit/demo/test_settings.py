from __future__ import annotations

import configparser
import json
from pathlib import Path

from airflow_raytpu.demo import settings
from airflow_raytpu.demo.home import DemoHome
from airflow_raytpu.storage import objects


def _written(root: Path) -> tuple[DemoHome, str, configparser.ConfigParser]:
    home = DemoHome(root=root, dags=root / "dags", port=4711)
    home.airflow.mkdir(parents=True)
    password = settings.write(home)
    parser = configparser.ConfigParser()
    parser.read(home.airflow / "airflow.cfg")
    return home, password, parser


def test_paths_survive_spaces_and_percent_signs(tmp_path: Path):
    home, _, parser = _written(tmp_path / "a b %20 ü")
    assert parser["core"]["dags_folder"] == str(home.dags)
    storage = parser["raytpu"]["storage"]
    assert objects.normalise(storage) == storage
    assert objects.write_bytes(f"{storage}/x", b"1")
    assert (home.storage / "x").read_bytes() == b"1"


def test_every_address_names_the_port_and_the_loopback_interface(tmp_path: Path):
    _, _, parser = _written(tmp_path)
    assert parser["api"]["host"] == "127.0.0.1"
    assert parser["api"]["port"] == "4711"
    assert parser["api"]["base_url"] == "http://localhost:4711"
    assert parser["core"]["execution_api_server_url"] == "http://127.0.0.1:4711/execution/"


def test_secrets_are_new_each_time_and_private(tmp_path: Path):
    home, first, before = _written(tmp_path)
    (home.airflow / "airflow.cfg").chmod(0o644)
    second = settings.write(home)
    after = configparser.ConfigParser()
    after.read(home.airflow / "airflow.cfg")
    assert first != second
    for section, key in (("api", "secret_key"), ("api_auth", "jwt_secret")):
        assert before[section][key] != after[section][key]
    # What is encrypted in a database that is kept must stay readable.
    assert before["core"]["fernet_key"] == after["core"]["fernet_key"]
    assert json.loads((home.airflow / "passwords.json").read_text()) == {"admin": second}
    for name in ("airflow.cfg", "passwords.json"):
        assert (home.airflow / name).stat().st_mode & 0o777 == 0o600
