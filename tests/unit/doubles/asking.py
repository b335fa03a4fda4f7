"""RayClusters by hand, and the official client on them."""

from __future__ import annotations

import contextlib
import json

PLACE = ("ray.io", "v1", "default", "rayclusters")
MERGE = "application/merge-patch+json"


def pod_template(**container):
    return {"spec": {"containers": [{"name": "ray", "image": "ray:2.60", **container}]}}


def ray_cluster(name="a", **spec):
    head = {"rayStartParams": {}, "template": pod_template()}
    metadata = {"name": name}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": {"headGroupSpec": head, **spec},
    }


def worker_group(**more):
    return {
        "groupName": "w",
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": pod_template(),
        **more,
    }


class Answer(Exception):
    """What the server said, as it said it."""

    def __init__(self, error):
        super().__init__(f"{error.status} {error.body}")
        self.code, self.headers, self.text = error.status, error.headers, error.body
        with contextlib.suppress(TypeError, ValueError):
            self.body = json.loads(error.body)

    @property
    def fields(self):
        return {cause["field"] for cause in self.body["details"]["causes"]}


class Ray:
    """:class:`Answer` for every refusal."""

    def __init__(self, client):
        from kubernetes_asyncio.client import CustomObjectsApi

        self.api = CustomObjectsApi(client)

    def __getattr__(self, verb):
        method = {
            "list": "list_namespaced_custom_object",
            "status": "patch_namespaced_custom_object_status",
            "delete_all": "delete_collection_namespaced_custom_object",
        }.get(verb, f"{verb}_namespaced_custom_object")

        async def ask(*args, place=PLACE, **options):
            from kubernetes_asyncio.client import ApiException

            if verb in {"patch", "status"}:
                options.setdefault("_content_type", MERGE)
                if not options["_content_type"]:
                    del options["_content_type"]  # as who does not think of it
            try:
                return await getattr(self.api, method)(*place, *args, **options)
            except ApiException as error:
                raise Answer(error) from None

        return ask

    async def refused(self, asked):
        """The refusal that *asked* meets."""
        try:
            answer = await asked
        except Answer as refusal:
            return refusal
        raise AssertionError(f"not refused: {answer}")

    async def watch(self, place=PLACE, **options):
        """Events as they come, until the watch ends; an ERROR ends it as an :class:`Answer` does."""
        lines = self.lines(place, **options)
        async with contextlib.aclosing(lines):
            async for event in lines:
                yield event["type"], event["object"]

    async def lines(self, place=PLACE, **options):
        response = await self.api.list_namespaced_custom_object(*place, watch=True, _preload_content=False, **options)
        async with response:
            assert response.status == 200
            async for line in response.content:
                yield json.loads(line)
