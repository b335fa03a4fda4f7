"""Google Cloud Storage for one bucket, behind a real socket, with the troubles of a network to order.

What it holds lies in memory (:mod:`tests.doubles.bucket_contents`) or in an emulator that others wrote
(:mod:`tests.doubles.emulator`). The clients are the real ones: google-cloud-storage on Airflow's side; pyarrow, gcsfs
and TensorStore in the cluster.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tests.doubles.bucket_contents import Answer, Call, Contents, refusal

ALWAYS = 1 << 30


@dataclass
class Trouble:
    """What requests meet.

    :param what: ``status``; ``reset`` (cut before anything is done), ``half`` (cut in the middle of the upload),
        ``lost`` (cut after it was done), ``torn`` (cut in the middle of the answer's body), ``slow`` (done after
        ``seconds``), ``hang`` (nothing is done or said until :meth:`Bucket.release`).
    :param of: which requests, a pattern of ``verb name`` (see :class:`Call`), such as ``put .*/_METADATA``.
    :param times: how many of them.
    :param says: the words of a refusal; without, such as no client takes for its own.
    """

    what: str
    of: str = ""
    times: int = 1
    status: int = 503
    seconds: float = 0.0
    says: str = "refused"


class Store(Protocol):
    """What a bucket holds, and what it answers. Not for several threads at once."""

    held: MutableMapping[str, bytes]
    may_see_bucket: bool

    def understand(self, call: Call) -> Call | None: ...
    def do(self, call: Call) -> Answer: ...
    def part_of(self, call: Call) -> None: ...
    def clear(self) -> None: ...


class Bucket:
    """A bucket, and what its clients meet.

    :ivar held: what is in it, by name.
    :ivar refuse: statuses of the next answers.
    :ivar troubles: each request meets the first that is meant for it.
    :ivar calls: all requests, as ``verb name``.
    :ivar met: those that met trouble, as ``what verb name``.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.held = store, store.held
        self.refuse: list[int] = []
        self.troubles: list[Trouble] = []
        self.calls: list[str] = []
        self.met: list[str] = []
        self.lock = threading.Lock()
        self._released = threading.Event()

    def do(self, call: Call) -> Answer:
        with self.lock:
            if call.verb == "bucket" and not self.store.may_see_bucket:
                return refusal(403, "the caller does not have storage.buckets.get access to the bucket")
            return self.store.do(call)

    def trouble(self, what: str, of: str = "", **more: Any) -> None:
        self.troubles.append(Trouble(what, of, **more))

    def release(self) -> None:
        """End what hangs."""
        self._released.set()
        self._released = threading.Event()

    def clear(self) -> None:
        """As new."""
        with self.lock:
            for kept in (self.store, self.refuse, self.troubles, self.calls, self.met):
                kept.clear()
        self.release()

    def meets(self, call: Call) -> Trouble | None:
        """The trouble that *call* is in."""
        if call.verb == "bucket":
            # The client on Airflow's side asks about the bucket by itself, for its traces.
            return None
        if self.refuse:
            return Trouble("status", status=self.refuse.pop(0))
        for trouble in self.troubles:
            if trouble.times and re.match(trouble.of, str(call)):
                trouble.times -= 1
                self.met.append(f"{trouble.what} {call}")
                return trouble
        return None

    def hang(self) -> None:
        self._released.wait(600)


def environment(address: str) -> dict[str, str]:
    """What makes a process take the server for Google: for google-cloud-storage and gcsfs, pyarrow, and TensorStore."""
    return {
        "STORAGE_EMULATOR_HOST": address,
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": address,
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anybody",
        # It would ask for the kind of the bucket by gRPC, at Google's own address.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


@contextlib.contextmanager
def serving(of: str | Store = "b") -> Iterator[tuple[str, Bucket]]:
    """A running server: ``(its address, its bucket)``.

    :param of: what is served; a name stands for an empty bucket in memory.
    """
    bucket = Bucket(Contents(of) if isinstance(of, str) else of)
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bucket
    finally:
        server.shutdown()
        bucket.release()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that the clients keep open must not hold the end up.
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    bucket: Bucket
    protocol_version = "HTTP/1.1"
    # An answer is two packets; the client would keep the second one waiting.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        # gcsfs escapes the whole name, others leave slashes: either way it is one path.
        call = Call(self.command, url.path, asked, self.headers, self._body())
        with self.bucket.lock:
            understood = self.bucket.store.understand(call)
            trouble = self.bucket.meets(call) if understood else None
            self.bucket.calls.append(str(call))
        if understood is None:
            self._answer(refusal(404, f"The specified bucket does not exist: {unquote(url.path)}"))
        elif trouble is None:
            self._answer(self.bucket.do(call))
        else:
            _TROUBLES[trouble.what](self, call, trouble)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - as they are called

    def log_message(self, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, answer: Answer, torn: bool = False) -> None:
        is_json = not isinstance(answer.body, bytes)
        data = json.dumps(answer.body).encode() if is_json else answer.body
        self.send_response(answer.status)
        kind = "application/json" if is_json else "application/octet-stream"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if torn else data)
        if torn:
            self._cut()

    def _cut(self) -> None:
        """End the connection as a broken network does."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()
        self.close_connection = True

    def _status(self, call: Call, trouble: Trouble) -> None:
        self._answer(refusal(trouble.status, trouble.says))

    def _reset(self, call: Call, trouble: Trouble) -> None:
        self._cut()

    def _half(self, call: Call, trouble: Trouble) -> None:
        with self.bucket.lock:
            self.bucket.store.part_of(call)
        self._cut()

    def _lost(self, call: Call, trouble: Trouble) -> None:
        self.bucket.do(call)
        self._cut()

    def _torn(self, call: Call, trouble: Trouble) -> None:
        self._answer(self.bucket.do(call), torn=True)

    def _slow(self, call: Call, trouble: Trouble) -> None:
        time.sleep(trouble.seconds)
        self._answer(self.bucket.do(call))

    def _hang(self, call: Call, trouble: Trouble) -> None:
        self.bucket.hang()
        self._cut()


_TROUBLES: dict[str, Callable[[_Handler, Call, Trouble], None]] = {
    "status": _Handler._status,
    "reset": _Handler._reset,
    "half": _Handler._half,
    "lost": _Handler._lost,
    "torn": _Handler._torn,
    "slow": _Handler._slow,
    "hang": _Handler._hang,
}
