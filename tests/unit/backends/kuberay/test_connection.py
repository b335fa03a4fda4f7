"""One line per API server and event loop; TLS both ways."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from airflow_raytpu.backends.kuberay.api import PODS, KubeApi, Pace
from airflow_raytpu.model.errors import BackendUnreachable
from tests.doubles.certificates import Certificates


class Secured:
    """Access by client certificate."""

    def __init__(self, url: str, authority: Path, ours: Certificates) -> None:
        self.key = f"{url} {authority}"
        self._url, self._authority, self._ours = url, authority, ours

    async def client(self) -> Any:
        from kubernetes_asyncio.client import ApiClient, Configuration

        configuration = Configuration(host=self._url)
        configuration.ssl_ca_cert = str(self._authority)
        configuration.cert_file, configuration.key_file = str(self._ours.certificate), str(self._ours.key)
        return ApiClient(configuration)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path, "ours")


@pytest.fixture
async def url(certificates: Certificates) -> AsyncIterator[str]:
    """A server that talks only to those who bring a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.authority))
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/{path:.*}", _pod)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _pod(request: web.Request) -> web.Response:
    return web.json_response({"metadata": {"name": "p", "path": request.path, "by": request.headers["User-Agent"]}})


async def test_a_client_certificate_opens_the_api_and_the_proxy(url: str, certificates: Certificates) -> None:
    api = KubeApi(Secured(url, certificates.authority, certificates), "ml")
    assert (await api.get(PODS, "p") or {})["metadata"]["by"] == "airflow-raytpu"
    door = await api.proxy("head", 8265)
    headers = await door.headers()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{door.url}/api/version", headers=headers, ssl=door.ssl or True) as answer:
            assert (await answer.json())["metadata"]["path"].endswith("/services/head:8265/proxy/api/version")
        async with session.get(f"{door.url}/api/version", **await door.arguments()) as answer:
            assert answer.status == 200
    context = door.ssl
    await door.headers()
    assert door.ssl is context
    await api.close()


async def test_an_unknown_authority_is_told_at_once(url: str, certificates: Certificates, tmp_path: Path) -> None:
    async def sleep(_: float) -> None:
        raise AssertionError("tried again")

    other = Certificates(tmp_path, "other")
    api = KubeApi(Secured(url, other.authority, certificates), "ml", Pace(sleep=sleep))
    with pytest.raises(BackendUnreachable) as refused:
        await api.get(PODS, "p")
    assert "in 1 try" in refused.value.cause
    assert "CA certificate" in refused.value.lever
    await api.close()


def test_pauses_grow_are_spread_and_have_a_ceiling() -> None:
    pace = Pace()
    for tries, most in ((1, 0.2), (2, 0.4), (4, 1.6), (6, 4.0), (1000, 4.0)):
        pauses = [pace.pause(tries) for _ in range(50)]
        assert all(most / 2 <= pause <= most for pause in pauses)
        assert len(set(pauses)) > 40


async def test_many_first_calls_load_the_credentials_once(url: str, certificates: Certificates) -> None:
    access = Secured(url, certificates.authority, certificates)
    loads = 0
    load = access.client

    async def counted() -> Any:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0)
        return await load()

    access.client = counted  # type: ignore[method-assign]
    apis = [KubeApi(access, "ml") for _ in range(20)]
    await asyncio.gather(*(api.get(PODS, "p") for api in apis))
    assert loads == 1
    await asyncio.gather(*(api.close() for api in apis))


def test_importing_the_client_loads_no_kubernetes_library() -> None:
    code = (
        "import sys; import airflow_raytpu.backends.kuberay.watch;"
        "print([name for name in sys.modules if name.split('.')[0] in ('kubernetes', 'kubernetes_asyncio', 'airflow')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
