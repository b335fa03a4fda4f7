"""What a backend must bring along to be held to the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_raytpu.backends.base import Backend
from airflow_raytpu.model.request import RayRequest

RUNTIME = '''
"""Does what the request's arguments say, and nothing of what the real runtime does."""

import json, os, signal, sys, time, urllib.parse

sys.stdout.reconfigure(line_buffering=True)
request = json.load(open(urllib.parse.unquote(sys.argv[1].removeprefix("file://"))))
do = request["arguments"]
outbox = os.path.join(urllib.parse.unquote(request["storage"].removeprefix("file://")), "outbox", request["name"])

def put(what, value):
    with open(f"{outbox}.{what}.new", "w") as file:
        json.dump({"request": request["name"], **value}, file)
    os.replace(f"{outbox}.{what}.new", f"{outbox}.{what}.json")

def stopped(*_):
    print("told to stop")
    put("stopped", {})
    sys.exit(3)

signal.signal(signal.SIGTERM, stopped)
put("progress", {"phase": "training", "at": time.time(), "done": 1, "total": 2, "unit": "step"})
if do.get("hold"):
    import ray
    from ray.util.tpu import slice_placement_group
    ray.init(log_to_driver=False)
    slice_placement_group(**do["hold"]).placement_group.wait(60)
    put("held", {})
for number in range(do.get("lines", 0)):
    print(f"zeile {number} ä€")
while do.get("wait_for") and not os.path.exists(do["wait_for"]):
    time.sleep(0.05)
print("at", os.environ["RAY_ADDRESS"], "serve", os.environ["RAYTPU_ENDPOINT"], "in", os.getcwd())
if do.get("exit"):
    sys.exit(do["exit"])
put("result", {"value": {"answer": do.get("answer")}})
'''

FILES = {
    "airflow_raytpu/__init__.py": "",
    "airflow_raytpu/runtime/__init__.py": "",
    "airflow_raytpu/runtime/__main__.py": RUNTIME,
}


@dataclass(frozen=True)
class Harness:
    """One backend under test, with a ready cluster.

    :param cluster: the request of that cluster, shared by the tests.
    :param open: a new backend object, as another process would have.
    :param job: makes a request on the shared cluster that runs :data:`RUNTIME` with the given arguments.
    :param jobs: the requests made so far.
    :param opened: the backends opened so far, which are closed after the test.
    """

    backend: Backend
    cluster: RayRequest
    open: Callable[[], Backend]
    job: Callable[..., RayRequest]
    jobs: list[RayRequest]
    opened: list[Backend]
    scratch: Path
