"""What one poll costs as Airflow's Kubernetes provider does it: a new client each time. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook

from bench.waiting_tasks import Server

_WARM = 3


async def main(polls: int) -> None:
    from kubernetes_asyncio.client import CustomObjectsApi

    server = await Server.start(1)
    place = await server.heard()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": place["url"]}}],
        "users": [{"name": "u", "user": {"token": place["token"]}}],
    }
    hook = AsyncKubernetesHook(conn_id=None, in_cluster=False, config_dict=config)
    costs = []
    for _ in range(polls + _WARM):
        began = time.process_time()
        async with hook.get_conn() as connection:
            found = await CustomObjectsApi(connection).get_namespaced_custom_object(
                "ray.io", "v1", "default", "rayjobs", "job-0"
            )
        costs.append(time.process_time() - began)
        assert found["metadata"]["name"] == "job-0"
    requests = await server.count()
    await server.stop()
    print(json.dumps({"cpu": costs[_WARM:], "requests": requests / len(costs)}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
