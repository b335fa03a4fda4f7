"""A Ray driver that does what it is told on its standard input: takes slices, gives them back, says what it sees."""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import ExitStack

import ray
from ray.util.placement_group import placement_group_table

from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import slices, survey
from airflow_raytpu.runtime.tenancy import reserve

held = ExitStack()


def take(shape, wait_s):
    told, began = [], time.time()
    try:
        got = held.enter_context(reserve(plan(TpuSlice.parse(shape)), began + wait_s, told.append))
    except RayTpuError as error:
        return {"error": f"{error.code} {error.cause}", "told": told, "s": time.time() - began}
    names = {
        node["NodeID"]: node["Labels"]["ray.io/tpu-slice-name"] for node in ray.nodes() if node["Resources"].get("TPU")
    }
    # Where the bundles really are, by Ray's own table.
    on = [names[node_id] for node_id in placement_group_table(got.group)["bundles_to_node_id"].values()]
    return {
        "on": sorted(on),
        "nodes": sorted(placement_group_table(got.group)["bundles_to_node_id"].values()),
        "workers": [host.worker_id for host in got.hosts],
        "told": told,
        "s": time.time() - began,
        "job": ray.get_runtime_context().get_job_id(),
    }


def give():
    held.close()
    return {}


find_fault = survey._fault


def lie():
    """From now on the survey finds every slice whole, whatever is missing."""
    survey._fault = lambda *_: ""
    return {}


def truth():
    survey._fault = find_fault
    return {}


def look(shape):
    return {view.name: view.state for view in slices.look(plan(TpuSlice.parse(shape)))}


def left():
    """Groups that are not removed, and what somebody holds."""
    total, free = ray.cluster_resources(), ray.available_resources()
    tpu = {name for name in total if name.startswith("TPU")}
    return {
        "groups": [row["state"] for row in placement_group_table().values() if row["state"] != "REMOVED"],
        "held": {name: total[name] - free.get(name, 0) for name in tpu if free.get(name, 0) != total[name]},
    }


def occupy(name, chips):
    """Hold chips outside of any group."""

    @ray.remote(resources={"TPU": chips}, num_cpus=0, label_selector={"ray.io/tpu-slice-name": name})
    class Occupant:
        def here(self):
            return True

    occupant = Occupant.remote()
    ray.get(occupant.here.remote())
    held.callback(ray.kill, occupant)
    return {}


def churn(seed, count, shapes):
    """Take and give *count* times, seeded; how long each took, and what was wrong with any."""
    order, took, wrong = random.Random(seed), [], []
    for _ in range(count):
        shape = order.choice(shapes)
        got = take(shape, 20.0)
        took.append(got["s"])
        if "error" in got or len(set(got["on"])) != TpuSlice.parse(shape).num_slices:
            wrong.append([shape, got])
        give()
    return {"s": sum(took), "slowest": max(took), "wrong": wrong}


DO = {function.__name__: function for function in (take, give, lie, truth, look, left, occupy, churn)}

if __name__ == "__main__":
    # Ray prints what it has to say about dead hosts.
    answers, sys.stdout = sys.stdout, sys.stderr
    ray.init(log_to_driver=False, logging_level="error")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(DO[what](*arguments)), file=answers, flush=True)
