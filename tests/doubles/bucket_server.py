"""Google Cloud Storage's JSON API for one bucket, ``b``, in memory, behind a real socket."""

from __future__ import annotations

import fnmatch
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class Bucket:
    """What the bucket holds, and which statuses it answers with before it works again."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.refuse: list[int] = []


@contextmanager
def serving():
    """A running server: ``(its address, its bucket)``."""
    bucket = Bucket()
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    bucket: Bucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def log_message(self, *args) -> None:
        pass

    def _serve(self, work) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.endswith("/b/b"):
            # The client asks about the bucket by itself, for its traces, and does not mind the answer.
            self._answer(200, {"name": "b"})
        elif self.bucket.refuse:
            self._answer(self.bucket.refuse.pop(0), {"error": {"message": "refused"}})
        elif not re.search(r"/b/b(/|$)", url.path):
            self._answer(404, {"error": {"message": "no bucket"}})
        else:
            work(url.path, asked, body)

    def _get(self, path, asked, body) -> None:
        held = self.bucket.held
        if path.endswith("/o"):
            names = sorted(name for name in held if name.startswith(asked.get("prefix", "")))
            names = [name for name in names if fnmatch.fnmatch(name, asked.get("matchGlob", "*"))]
            self._answer(200, {"items": [_describe(name, held) for name in names]})
            return
        name = unquote(path.rpartition("/o/")[2])
        if name not in held:
            self._answer(404, {"error": {"message": "no object"}})
        else:
            self._answer(200, held[name] if asked.get("alt") == "media" else _describe(name, held))

    def _post(self, path, asked, body) -> None:
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
        _, head, content, _ = re.split(rb"\r?\n?--" + re.escape(boundary) + rb"(?:--)?\r?\n?", body, maxsplit=3)
        name = json.loads(head.split(b"\r\n\r\n", 1)[1])["name"]
        if asked.get("ifGenerationMatch") == "0" and name in self.bucket.held:
            self._answer(412, {"error": {"message": "there is one"}})
            return
        self.bucket.held[name] = content.split(b"\r\n\r\n", 1)[1]
        self._answer(200, _describe(name, self.bucket.held))

    def _answer(self, status: int, body) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _describe(name: str, held: dict[str, bytes]) -> dict[str, str]:
    return {"name": name, "bucket": "b", "size": str(len(held[name])), "generation": "1"}
