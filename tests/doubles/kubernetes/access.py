"""Access to the fake server for our own Kubernetes client."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class TestAccess:
    """Credentials as the backend takes them.

    :param token: changed by a test, the next request has the new one.
    :ivar refreshed: how many requests have asked for the token.
    """

    __test__ = False  # nothing for pytest to collect

    url: str
    token: str
    refreshed: int = 0

    @property
    def key(self) -> str:
        return f"{self.url}#{self.token}"

    async def client(self) -> Any:
        from kubernetes_asyncio.client import ApiClient, Configuration

        configuration = Configuration(host=self.url)
        configuration.ssl_ca_cert = _one_authority()
        configuration.api_key_prefix["BearerToken"] = "Bearer"

        async def refresh(configuration: Any) -> None:
            self.refreshed += 1
            configuration.api_key["BearerToken"] = self.token

        await refresh(configuration)
        configuration.refresh_api_key_hook = refresh
        return ApiClient(configuration)


@functools.cache
def _one_authority() -> str:
    """A file with a single certificate: a client reads all of the system's otherwise, 0.1 s each time, for nothing."""
    import certifi

    end = "-----END CERTIFICATE-----\n"
    text = Path(certifi.where()).read_text()
    folder = tempfile.mkdtemp(prefix="raytpu-ca-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "ca.pem"
    path.write_text(text[text.index("-----BEGIN") : text.index(end)] + end)
    return str(path)
