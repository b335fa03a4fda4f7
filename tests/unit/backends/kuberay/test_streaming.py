"""Events out of bytes, however they are cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay.refusals import Asked, Expired
from airflow_raytpu.backends.kuberay.resources import RAYJOBS
from airflow_raytpu.backends.kuberay.streaming import Event, Kind, events
from airflow_raytpu.model.errors import BackendUnreachable, ForbiddenError

ASKED = Asked(verb="watch", resource=RAYJOBS, namespace="ml")


def line(kind: str, each: Any) -> bytes:
    return json.dumps({"type": kind, "object": each}).encode() + b"\n"


def job(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


async def read(*chunks: bytes) -> list[Event]:
    async def given_chunks() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in events(ASKED, given_chunks())]


STREAM = line("ADDED", job("a\u00e4", 1)) + b"\n" + line("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
STREAM += line("DELETED", job("a\u00e4", 9))


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
async def test_events_are_whole_however_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    found = await read(*(STREAM[start:end] for start, end in itertools.pairwise(edges)))
    assert [(event.kind, event.version) for event in found] == [
        (Kind.ADDED, "1"),
        (Kind.BOOKMARK, "7"),
        (Kind.DELETED, "9"),
    ]


async def test_an_event_that_was_cut_off_is_not_believed() -> None:
    assert [event.version for event in await read(line("ADDED", job("a", 1)) + line("ADDED", job("b", 2))[:-2])] == [
        "1"
    ]


async def test_an_event_is_not_held_back_until_the_next() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield line("ADDED", job("a", 1))
        raise AssertionError("asked for more before the first was handed over")

    async for event in events(ASKED, chunks()):
        assert event.version == "1"
        break


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(410, "Expired", Expired), (410, "Gone", Expired), (500, "", BackendUnreachable), (403, "", ForbiddenError)],
)
async def test_an_error_event_is_that_error(code: int, reason: str, error: type[Exception]) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "why"}
    with pytest.raises(error, match="why"):
        await read(line("ERROR", status))


@pytest.mark.parametrize(
    "text",
    [
        b"<html>\n",
        b"[]\n",
        b'{"type": "ADDED"}\n',
        line("NOVEL", job("a", 1)),
        line("ADDED", {"metadata": {"name": "a"}}),
        line("MODIFIED", {"metadata": {"resourceVersion": "1"}}),
        line("BOOKMARK", None),
        line("ERROR", None),
    ],
)
async def test_what_is_no_event_is_told(text: bytes) -> None:
    with pytest.raises(BackendUnreachable, match="not in Kubernetes' form"):
        await read(text)
