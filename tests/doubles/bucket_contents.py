"""Google Cloud Storage's JSON API for one bucket, in memory: preconditions, pages, uploads in parts, sums."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import google_crc32c

PART = 256 * 1024
"""An upload in parts is kept in whole ones of these, as Google does."""


@dataclass
class Call:
    """One request, as far as it was read.

    :ivar verb: ``bucket``, ``list``, ``stat``, ``get``, ``put``, ``begin``, ``part`` or ``delete``.
    :ivar name: of the object, or the prefix that is listed.
    """

    method: str
    path: str
    asked: dict[str, str]
    headers: Any
    body: bytes
    verb: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.name}"


@dataclass
class Answer:
    status: int
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class _Upload:
    name: str
    asked: dict[str, str]
    notes: dict[str, str]
    data: bytes = b""
    object: dict[str, Any] | None = None


class Addressed:
    """What the requests to one bucket are about.

    :ivar may_see_bucket: may the client ask about the bucket itself, for which Storage Object User is not enough?
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.may_see_bucket = False
        self._begun: dict[str, str] = {}

    def understand(self, call: Call) -> Call | None:
        """*call* with its verb and name; ``None`` where it is about another bucket."""
        found = re.fullmatch(rf"(?:/(upload|download))?/storage/v1/b/{self.bucket}(/o(?:/(.*))?)?", call.path)
        if found is None:
            return None
        kind, objects, name = found.groups()
        call.name = unquote(name or "")
        if not objects:
            call.verb = "bucket"
        elif "upload_id" in call.asked:
            call.verb, call.name = "part", self._begun[call.asked["upload_id"]]
        elif kind == "upload":
            resumable = call.asked.get("uploadType") == "resumable"
            call.verb = "begin" if resumable else "put"
            call.name = call.asked.get("name") or _about(call)["name"]
        elif name is None:
            call.verb, call.name = "list", call.asked.get("prefix", "")
        elif call.method == "DELETE":
            call.verb = "delete"
        else:
            call.verb = "get" if call.asked.get("alt") == "media" else "stat"
        return call

    def begun(self, call: Call, number: str) -> str:
        """Note an upload in parts, known by *number* from now on; the address of its parts."""
        self._begun[number] = call.name
        return f"http://{call.headers['Host']}{quote(call.path)}?uploadType=resumable&upload_id={number}"


class Contents(Addressed):
    """Objects by name, and what a client may ask of them. Not for several threads at once.

    :ivar page: objects that one listing shows at most.
    """

    def __init__(self, bucket: str) -> None:
        super().__init__(bucket)
        self.held: dict[str, bytes] = {}
        self.page = 1000
        self._generations: dict[str, int] = {}
        self._notes: dict[str, dict[str, str]] = {}
        self._last = 0
        self._uploads: dict[str, _Upload] = {}

    def clear(self) -> None:
        """As new."""
        self.held.clear()
        self.may_see_bucket, self.page = False, 1000

    def do(self, call: Call) -> Answer:
        if call.verb in ("get", "stat", "delete") and call.name not in self.held:
            return refusal(404, f"No such object: {self.bucket}/{call.name}")
        answer: Answer = getattr(self, f"_{call.verb}")(call)
        return answer

    def part_of(self, call: Call) -> None:
        """Keep the first half of an upload's part, as when the connection breaks in its middle."""
        if call.verb == "part":
            upload = self._uploads[call.asked["upload_id"]]
            upload.data += call.body[: len(call.body) // 2 // PART * PART]

    def describe(self, name: str) -> dict[str, Any]:
        data, now = self.held[name], datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{name}/{self._generations.setdefault(name, 1)}",
            "name": name,
            "bucket": self.bucket,
            "size": str(len(data)),
            "generation": str(self._generations[name]),
            "metageneration": "1",
            "metadata": self._notes.get(name, {}),
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            "timeCreated": now,
            "updated": now,
            "md5Hash": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
            "crc32c": base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode(),
        }

    def _bucket(self, call: Call) -> Answer:
        return Answer(200, {"kind": "storage#bucket", "name": self.bucket, "location": "US"})

    def _list(self, call: Call) -> Answer:
        prefix, delimiter = call.name, call.asked.get("delimiter", "")
        glob = call.asked.get("matchGlob", "*")
        start, end = call.asked.get("startOffset", ""), call.asked.get("endOffset", "")
        found: dict[str, bool] = {}
        for name in sorted(self.held):
            if not name.startswith(prefix) or not fnmatch.fnmatch(name, glob) or name < start or (end and name >= end):
                continue
            below = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            folder = prefix + below[0] + below[1]
            if below[1]:
                found[folder] = True
            if not below[1] or (call.asked.get("includeTrailingDelimiter") == "true" and name == folder):
                found[name] = False
        after = call.asked.get("pageToken", "")
        names = [name for name in found if name > after]
        shown = names[: min(self.page, int(call.asked.get("maxResults", self.page)))]
        body: dict[str, Any] = {"kind": "storage#objects"}
        body["items"] = [self.describe(name) for name in shown if not found[name]]
        body["prefixes"] = [name for name in shown if found[name]]
        if len(shown) < len(names):
            body["nextPageToken"] = shown[-1]
        # Google leaves out what is empty.
        return Answer(200, {key: value for key, value in body.items() if value})

    def _stat(self, call: Call) -> Answer:
        return Answer(200, self.describe(call.name))

    def _get(self, call: Call) -> Answer:
        data, about = self.held[call.name], self.describe(call.name)
        sums = f"crc32c={about['crc32c']},md5={about['md5Hash']}"
        headers = {"x-goog-generation": about["generation"], "x-goog-hash": sums}
        if call.asked.get("ifGenerationNotMatch") == about["generation"]:
            return Answer(304)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("Range") or "")
        if wanted is None:
            return Answer(200, data, headers)
        first, last = wanted.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= len(data) and data:
            return refusal(416, "the range begins behind the end")
        return Answer(206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _put(self, call: Call) -> Answer:
        if call.asked["uploadType"] == "media":
            return self._keep(call.name, call.body, call.asked, {})
        return self._keep(call.name, _halves(call)[1], call.asked, _about(call).get("metadata", {}))

    def _begin(self, call: Call) -> Answer:
        number = str(len(self._uploads) + 1)
        self._uploads[number] = _Upload(call.name, call.asked, _about(call).get("metadata", {}))
        return Answer(200, {}, {"Location": self.begun(call, number)})

    def _part(self, call: Call) -> Answer:
        upload = self._uploads[call.asked["upload_id"]]
        if upload.object is not None:
            return Answer(200, upload.object)
        where = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", call.headers.get("Content-Range") or "bytes */*")
        assert where is not None, call.headers["Content-Range"]
        if where[1] is not None:
            upload.data = upload.data[: int(where[1])] + call.body
        if where[2] == str(len(upload.data)):
            answer = self._keep(upload.name, upload.data, upload.asked, upload.notes)
            upload.object = answer.body if answer.status == 200 else None
            return answer
        upload.data = upload.data[: len(upload.data) // PART * PART]
        return Answer(308, b"", {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {})

    def _delete(self, call: Call) -> Answer:
        del self.held[call.name]
        return Answer(204)

    def _keep(self, name: str, data: bytes, asked: dict[str, str], notes: dict[str, str]) -> Answer:
        wanted = asked.get("ifGenerationMatch")
        if wanted is not None and wanted != (str(self._generations.get(name, 1)) if name in self.held else "0"):
            return refusal(412, "At least one of the pre-conditions you specified did not hold.")
        self._last += 1
        self.held[name], self._generations[name], self._notes[name] = data, self._last, notes
        return Answer(200, self.describe(name))


def refusal(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"code": status, "message": message, "errors": [{"message": message}]}})


def _about(call: Call) -> dict[str, Any]:
    """What an upload says of the object."""
    about = call.body if call.asked["uploadType"] == "resumable" else _halves(call)[0]
    return dict(json.loads(about or b"{}"))


def _halves(call: Call) -> tuple[bytes, bytes]:
    """What a multipart upload says of the object, and the object."""
    found = re.search(r'boundary="?([^";]+)', call.headers["Content-Type"])
    assert found is not None
    boundary = b"--" + found[1].encode()
    _, about, rest = call.body.split(boundary, 2)
    data = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1]
    end = data.rindex(boundary + b"--")
    return re.split(rb"\r?\n\r?\n", about, maxsplit=1)[1], re.sub(rb"\r?\n\Z", b"", data[:end])
