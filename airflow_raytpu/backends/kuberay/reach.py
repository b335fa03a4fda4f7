"""The way to a cluster's Ray: its Service inside the cluster, the API server's proxy outside, or a stated URL."""

from __future__ import annotations

import base64
import binascii
import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_raytpu.backends.kuberay.resources import SECRETS, Body
from airflow_raytpu.model.errors import BackendUnreachable, RequestError

if TYPE_CHECKING:
    from airflow_raytpu.backends.kuberay.api import KubeApi
    from airflow_raytpu.backends.rayapi import RayApi

DASHBOARD_PORT = 8265
SERVE_PORT = 8000
_TOKEN = "auth_token"  # noqa: S105 - the key of KubeRay's Secret (1.7)


class Way(enum.Enum):
    """``AUTO`` is ``SERVICE`` where this process is a pod, else ``PROXY``."""

    AUTO = "auto"
    SERVICE = "service"
    PROXY = "proxy"
    URL = "url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How Airflow reaches the clusters of one connection.

    :param url: for ``Way.URL``: base URL of a dashboard, with ``{namespace}`` and ``{cluster}`` in it.
    :raises RequestError: a URL without its way, or the other way round.
    """

    way: Way = Way.AUTO
    url: str = ""

    def __post_init__(self) -> None:
        if bool(self.url) is not (self.way is Way.URL):
            raise RequestError(
                f"reach is {self.way.value!r} and url is {self.url!r}.",
                'Give both reach="url" and a url such as "https://ray.example.com/{namespace}/{cluster}", or neither.',
            )
        try:
            self.url.format(namespace="", cluster="")
        except (KeyError, IndexError, ValueError) as error:
            raise RequestError(
                f"url {self.url!r} holds a placeholder that is not known: {error}.",
                "Only {namespace} and {cluster} are filled in.",
            ) from error

    @classmethod
    def of(cls, way: str, url: str) -> Reach:
        """:raises RequestError: there is no such way, or it does not go with *url*."""
        known = [each.value for each in Way]
        if way not in known:
            raise RequestError(f"reach {way!r} is not known.", f"Use one of {', '.join(known)}.")
        return cls(way=Way(way), url=url)

    @property
    def known(self) -> Way:
        """The way that is taken here."""
        if self.way is not Way.AUTO:
            return self.way
        return Way.SERVICE if os.environ.get("KUBERNETES_SERVICE_HOST") else Way.PROXY

    async def open(self, api: KubeApi, cluster: str) -> RayApi:
        """A client of *cluster*'s dashboard; close it after use.

        :raises BackendUnreachable: its token is not there (yet).
        """
        # A DAG file imports the hook and with it this module; an HTTP client is nothing it needs.
        from airflow_raytpu.backends.rayapi import RayApi

        token = await _token(api, cluster)
        service = head_service(cluster)
        match self.known:
            case Way.PROXY:
                door = await api.proxy(service, DASHBOARD_PORT)
                return RayApi(door.url, token, door)
            case Way.URL:
                return RayApi(self.url.format(namespace=api.namespace, cluster=cluster), token)
        return RayApi(f"http://{service}.{api.namespace}.svc:{DASHBOARD_PORT}", token)

    def link(self, namespace: str, cluster: str) -> str:
        """Where people find the dashboard: the stated URL; empty where only the cluster itself knows."""
        return self.url.format(namespace=namespace, cluster=cluster) if self.known is Way.URL else ""


class Rays:
    """Open clients of the clusters that one backend asks, each opened once.

    A cluster that was made anew under its name has another token, so its old client is of no use.
    """

    def __init__(self, reach: Reach, api: KubeApi) -> None:
        self._reach = reach
        self._api = api
        self._open: dict[str, tuple[str, RayApi]] = {}

    async def of(self, cluster: Body) -> RayApi:
        """:raises BackendUnreachable: its token is not there (yet)."""
        name, uid = str(cluster["metadata"]["name"]), str(cluster["metadata"].get("uid", ""))
        if (known := self._known(name, uid)) is not None:
            return known
        opened = await self._reach.open(self._api, name)
        if (known := self._known(name, uid)) is not None:  # somebody else was faster
            await opened.close()
            return known
        before = self._open.pop(name, None)
        self._open[name] = uid, opened
        if before is not None:
            await before[1].close()
        return opened

    async def close(self) -> None:
        """Idempotent."""
        clients, self._open = self._open, {}
        for _, client in clients.values():
            await client.close()

    def _known(self, name: str, uid: str) -> RayApi | None:
        found = self._open.get(name)
        return found[1] if found is not None and found[0] == uid else None


def head_service(cluster: str) -> str:
    """The Service that KubeRay makes for a head (1.7); clusters of ours have names short enough to stay whole."""
    return f"{cluster}-head-svc"


async def _token(api: KubeApi, cluster: str) -> str:
    """The cluster's token, which KubeRay keeps in a Secret of the cluster's name (1.7)."""
    secret = await api.get(SECRETS, cluster)
    if secret is None:
        raise BackendUnreachable(
            f"Secret {cluster} with the token of cluster {cluster} is not there.",
            "KubeRay 1.5 or later makes it for clusters with authOptions.mode token.",
        )
    try:
        return base64.b64decode(secret["data"][_TOKEN], validate=True).decode()
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError) as error:
        raise BackendUnreachable(f"Secret {cluster} holds no {_TOKEN}.", "Delete it; KubeRay makes it anew.") from error
