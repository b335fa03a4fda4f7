"""One watch: from the bytes of its answer to events, in order."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_raytpu.backends.kuberay.refusals import Answer, Asked, refusal
from airflow_raytpu.model.errors import BackendUnreachable


class Kind(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    object: dict[str, Any]

    @property
    def version(self) -> str:
        """The resourceVersion to go on from after this event."""
        return str(self.object["metadata"]["resourceVersion"])


async def events(asked: Asked, chunks: AsyncIterable[bytes]) -> AsyncGenerator[Event]:
    """Each event as soon as its line is whole; a line that is cut off by the end is dropped, to be sent again.

    :raises Expired: the server has forgotten the moment this watch began at.
    :raises RayTpuError: another error of the server, sent as an event.
    """
    rest: list[bytes] = []
    async for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for line in whole:
            text, rest = b"".join((*rest, line)), []
            if text.strip():
                yield _event(asked, text)
        if last:
            rest.append(last)


def _event(asked: Asked, line: bytes) -> Event:
    try:
        found = json.loads(line)
        kind, each = str(found["type"]), found["object"]
        if kind == "ERROR":
            raise refusal(asked, Answer(int(each.get("code") or 500), json.dumps(each)))
        event = Event(Kind(kind), each)
        # Touched here, so that a broken object is found before it is believed.
        if event.kind is not Kind.BOOKMARK:
            each["metadata"]["name"]
        event.version  # noqa: B018
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendUnreachable(f"{asked}: an event is not in Kubernetes' form: {line[:200]!r}") from error
    return event
