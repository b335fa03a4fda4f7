"""Other people's words, made fit for one line of a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay.observing.events import scheduling
from airflow_raytpu.backends.kuberay.observing.reading import LINE_LIMIT, line, moment, number


@given(st.text(max_size=3000))
def test_any_text_becomes_one_bounded_printable_line(words: str) -> None:
    made = line(words)
    assert made.isprintable()
    assert len(made) <= LINE_LIMIT
    assert made == made.strip()
    assert line(made) == made


def test_a_hostile_message_forges_no_second_line() -> None:
    assert line("a\n2026 INFO done\r\x1b[31m\u202ered\x00" + "x" * 10_000).startswith("a 2026 INFO done [31m red ")
    assert line("x" * 10_000).endswith("x ...")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "0/12 nodes are available: 12 Insufficient google.com/tpu.",
            "Insufficient google.com/tpu on 12 nodes",
        ),
        (
            "0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 No victims found",
            "Too many pods on 1 node",
        ),
        (
            "0/6 nodes are available: 2 node(s) had untolerated taint {google.com/tpu: a, b}, 4 Insufficient cpu.",
            "Insufficient cpu on 4 nodes, untolerated taint {google.com/tpu: a, b} on 2 nodes",
        ),
        (
            "0/7 nodes are available: 7 Insufficient cpu, 4 Insufficient google.com/tpu.",
            "Insufficient google.com/tpu on 4 nodes, Insufficient cpu on 7 nodes",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate",
            "node selector or affinity mismatch on 3 nodes",
        ),
        (
            '0/3 nodes are available: persistentvolumeclaim "data" not found. not found',
            '0/3 nodes are available: persistentvolumeclaim "data" not found. not found',
        ),
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
        ("", ""),
    ],
)
def test_the_schedulers_message_in_short(message: str, words: str) -> None:
    assert scheduling(message) == words


@given(st.text(max_size=300))
def test_any_schedulers_message_is_told(message: str) -> None:
    for each in (message, "0/3 nodes are available: " + message):
        assert scheduling(each).isprintable()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00.500000Z", 60.5),
        ("1970-01-01T02:01:00+02:00", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("0001-01-01T00:00:00Z", 0.0),
        ("9999-12-31T23:59:59-14:00", 253_402_351_199.0),
        ("yesterday", 0.0),
        ("", 0.0),
        (None, 0.0),
        (60, 0.0),
    ],
)
def test_a_time_is_read_or_is_none(text: object, seconds: float) -> None:
    assert moment({"at": text}, "at") == seconds


@pytest.mark.parametrize(
    ("value", "read"), [(4, 4), ("4", 4), ("04", 4), ("4k", 0), ("²", 0), (True, 0), (None, 0), ("9" * 40, 0), (-1, -1)]
)
def test_a_number_is_read_or_is_nought(value: object, read: int) -> None:
    assert number({"n": value}, "n") == read
