"""Gives a cluster on Kubernetes back when Airflow has not looked at it for as long as it may live.

Runs beside Ray in the head's pod, because it must work when Airflow is gone. The text of this module is the container's
program, so that no image needs this package: it uses nothing but Python itself. It needs the right to get and delete
RayClusters (docs/kubernetes/serviceaccount.yaml).
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HEARTBEAT, TTL = "airflow-raytpu/heartbeat", "airflow-raytpu/ttl-seconds"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POLL_S = 20.0
_CALL_S = 10.0
_SAY_EVERY_S = 600.0


class Keeper:
    """Looks at the RayCluster it is a part of.

    Only changes of the sign of life count, by this machine's clock: Airflow's may be minutes off.

    :param server: base URL of the API server.
    :param account: folder with ``token``, ``namespace`` and ``ca.crt``.
    :param cluster: name of the RayCluster.
    """

    def __init__(self, server: str, account: Path, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server.rstrip("/")
        self._cluster = cluster
        self._account = account
        self._clock = clock
        self._beat = ""
        self._beaten_at = clock()
        self._said_at = float("-inf")

    def look(self) -> bool:
        """Whether there is still something to keep. What goes wrong on the way is said, and tried again."""
        try:
            cluster = self._ask("GET")
            if cluster is None:
                return False
            if not self._is_over(cluster):
                return True
            sys.stdout.write(f"Nobody has looked at this cluster for {self._silence():.0f} s: deleting it.\n")
            # As it was just seen: whoever has looked at it since wants it.
            seen = {name: cluster["metadata"][name] for name in ("uid", "resourceVersion")}
            self._ask("DELETE", {"preconditions": seen, "propagationPolicy": "Background"})
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            # HTTPError is an OSError, and so is an account that is not mounted.
            self._say(f"The keeper cannot see to its cluster: {error!r}. Airflow alone ends it now.")
        return True

    def _is_over(self, cluster: Mapping[str, Any]) -> bool:
        said = cluster["metadata"].get("annotations") or {}
        beat, ttl = said.get(HEARTBEAT, ""), said.get(TTL, "")
        if beat != self._beat:
            self._beat, self._beaten_at = beat, self._clock()
        return bool(ttl) and self._silence() > float(ttl)

    def _silence(self) -> float:
        return self._clock() - self._beaten_at

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """``None`` where there is no such cluster."""
        # Read each time: the token of a pod is replaced every hour.
        headers = {"Authorization": f"Bearer {(self._account / 'token').read_text().strip()}"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        namespace = (self._account / "namespace").read_text().strip()
        url = f"{self._server}/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{self._cluster}"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the pod's own server
        authority = self._account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority)) if url.startswith("https:") else None
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S, context=context) as answer:  # noqa: S310 - as above
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code in {404, 409}:
                return None
            raise

    def _say(self, text: str) -> None:
        if self._clock() - self._said_at >= _SAY_EVERY_S:
            self._said_at = self._clock()
            sys.stderr.write(f"{text}\n")


def main() -> None:
    """Until the cluster is gone, and this pod with it."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    where = f"[{host}]" if ":" in host else host
    keeper = Keeper(f"https://{where}:{port}", _ACCOUNT, os.environ["RAYTPU_CLUSTER"])
    while keeper.look():
        time.sleep(_POLL_S)
    # A container that ends is started again, or makes its pod look broken.
    while True:
        time.sleep(_SAY_EVERY_S)


if __name__ == "__main__":
    main()
