from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends import raylines


async def given_as(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read(*chunks: bytes, offset: int = 0) -> list[tuple[str, int]]:
    return [(line.text, line.offset) async for line in raylines.lines(given_as(*chunks), offset)]


async def test_chunks_may_end_anywhere() -> None:
    text = "zwölf\n€\n".encode()
    assert await read(*(text[i : i + 1] for i in range(len(text)))) == [("zwölf", 7), ("€", 11)]


async def test_offsets_go_on_from_where_the_log_was_left() -> None:
    assert await read(b"a\n\nb\n", offset=100) == [("a", 102), ("", 103), ("b", 105)]


async def test_a_last_line_without_an_end_is_given() -> None:
    assert await read(b"a\nlast") == [("a", 2), ("last", 6)]


async def test_what_is_not_text_is_replaced() -> None:
    assert await read(b"\xff\n") == [("\ufffd", 2)]


async def test_a_line_without_an_end_is_not_held_for_ever() -> None:
    long = b"x" * (raylines._LONGEST + 1)
    assert [len(text) for text, _ in await read(long, b"y\n")] == [len(long), 1]


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(0, 50))
async def test_every_byte_is_counted_once(chunks: list[bytes], offset: int) -> None:
    lines = await read(*chunks, offset=offset)
    text = b"".join(chunks)
    assert (lines[-1][1] if lines else offset) == offset + len(text)
    assert [line for line, _ in lines] == [
        part.decode(errors="replace") for part in text.removesuffix(b"\n").split(b"\n")
    ][: len(lines)]
