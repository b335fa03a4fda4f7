"""What a watch has shown: any sequence of lists and events leaves what the server has, and wakes whom it concerns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_raytpu.backends.kuberay import contents
from airflow_raytpu.backends.kuberay.contents import INVOLVED, Contents


def thing(name: str, version: int, group: str = "", **more: Any) -> dict[str, Any]:
    labels = {"group": group} if group else {}
    return {"metadata": {"name": name, "resourceVersion": str(version), "uid": f"u-{name}", "labels": labels}, **more}


def shown(found: Contents) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found.items()}


class Server:
    """What really happened, version by version."""

    def __init__(self) -> None:
        self.version = 0
        self.log: list[tuple[bool, dict[str, Any]]] = []
        self.living: dict[str, dict[str, Any]] = {}

    def change(self, name: str, group: str) -> None:
        """Created or changed; deleted where *group* is empty."""
        if group or name in self.living:
            self.version += 1
            each = thing(name, self.version, group or "gone")
            self.log.append((bool(group), each))
            if group:
                self.living[name] = each
            else:
                del self.living[name]


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""])), max_size=25)


@given(changes=CHANGES, data=st.data())
def test_replays_gaps_and_writes_ahead_still_converge(changes: list[tuple[str, str]], data: st.DataObject) -> None:
    server, found, at = Server(), Contents(), 0
    found.replace([], "0")
    for change in changes:
        server.change(*change)
        match data.draw(st.sampled_from(["events", "replay", "list", "ahead", "nothing"])):
            case "events" | "replay" as how:
                at = data.draw(st.integers(0, at)) if how == "replay" else at
                for is_there, each in server.log[at:]:
                    (found.put if is_there else found.remove)(each)
                at = len(server.log)
            case "list":
                found.replace(server.living.values(), str(server.version))
                at = len(server.log)
            case "ahead" if change[1]:
                found.put_ahead(server.living[change[0]])
    for is_there, each in server.log[at:]:
        (found.put if is_there else found.remove)(each)
    assert shown(found) == {name: each["metadata"]["resourceVersion"] for name, each in server.living.items()}
    for group in ("x", "y"):
        there = {name for name, each in server.living.items() if each["metadata"]["labels"] == {"group": group}}
        assert {each["metadata"]["name"] for each in found.of("group", group)} == there


@given(before=CHANGES, after=CHANGES)
async def test_a_waiter_wakes_where_its_own_part_changed_and_only_there(
    before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    server, found = Server(), Contents()
    keys = [("", "a"), ("", "b"), ("group", "x"), ("group", "y")]
    for change in before:
        server.change(*change)
    found.replace(server.living.values(), str(server.version))
    waiting = {key: asyncio.ensure_future(found.changed(found.mark(key))) for key in keys}
    await asyncio.sleep(0)
    old, touched = dict(server.living), len(server.log)
    for change in after:
        server.change(*change)
    for is_there, each in server.log[touched:]:
        (found.put if is_there else found.remove)(each)
    await asyncio.sleep(0)
    names = {each["metadata"]["name"] for _, each in server.log[touched:]}
    for name in ("a", "b"):
        assert waiting["", name].done() is (name in names)
    states = [*(each for _, each in server.log[touched:]), *(old[name] for name in names & old.keys())]
    groups = {each["metadata"]["labels"]["group"] for each in states}
    for group in ("x", "y"):
        assert waiting["group", group].done() is (group in groups)
    for waiter in waiting.values():
        waiter.cancel()


async def test_a_change_between_mark_and_wait_is_not_missed() -> None:
    found = Contents()
    mark = found.mark(("", "a"))
    found.put(thing("a", 1))
    await asyncio.wait_for(found.changed(mark), 1)


async def test_no_waiter_is_kept_after_its_wait() -> None:
    found = Contents()
    waiter = asyncio.ensure_future(found.changed(found.mark(("", "a"))))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert not found._waiting


async def test_a_list_wakes_only_for_what_differs() -> None:
    found = Contents()
    found.replace([thing("a", 1), thing("b", 2), thing("c", 3)], "3")
    waiting = {name: asyncio.ensure_future(found.changed(found.mark(("", name)))) for name in "abc"}
    await asyncio.sleep(0)
    found.replace([thing("a", 1), thing("b", 5)], "6")
    await asyncio.sleep(0)
    assert {name: waiter.done() for name, waiter in waiting.items()} == {"a": False, "b": True, "c": True}
    waiting["a"].cancel()


def test_a_list_from_before_a_write_does_not_undo_it() -> None:
    found = Contents()
    found.put_ahead(thing("a", 5))
    found.replace([], "4")
    assert shown(found) == {"a": "5"}
    found.replace([], "6")
    found.put_ahead(thing("a", 5))
    assert shown(found) == {}


def test_what_was_deleted_is_not_brought_back_by_an_older_answer() -> None:
    found = Contents()
    found.replace([thing("a", 3)], "3")
    found.remove(thing("a", 9))
    found.put_ahead(thing("a", 5))
    assert shown(found) == {}
    found.put(thing("a", 10))
    assert shown(found) == {"a": "10"}


def test_after_a_restored_backup_the_list_counts_though_its_versions_are_lower() -> None:
    found = Contents()
    found.replace([thing("a", 900), thing("b", 901)], "950")
    found.replace([thing("a", 100)], "120")
    assert shown(found) == {"a": "100"}
    found.put(thing("a", 130))
    assert shown(found) == {"a": "130"}


def test_only_the_newest_are_kept_where_there_is_a_limit() -> None:
    found = Contents(most=2)
    found.replace([thing("a", 3), thing("b", 1), thing("c", 2)], "3")
    assert set(shown(found)) == {"a", "c"}
    found.put(thing("d", 4))
    assert set(shown(found)) == {"a", "d"}


def test_only_what_is_wanted_is_kept() -> None:
    found = Contents(lambda each: each["metadata"]["name"] != "b")
    found.replace([thing("a", 1), thing("b", 2)], "2")
    found.put(thing("b", 3))
    assert set(shown(found)) == {"a"}


def test_events_are_grouped_by_what_they_are_about() -> None:
    found = Contents()
    found.put(thing("e", 1, involvedObject={"name": "a"}))
    found.put(thing("f", 2))
    assert [each["metadata"]["name"] for each in found.of(INVOLVED, "a")] == ["e"]


def test_what_nobody_reads_is_not_kept() -> None:
    each = thing("a", 1)
    each["metadata"] |= {"managedFields": [1], "annotations": {contents._LAST_APPLIED: "{}", "mine": "1"}}
    found = Contents()
    found.put(each)
    assert found.items()[0]["metadata"]["annotations"] == {"mine": "1"}
    assert "managedFields" not in found.items()[0]["metadata"]


async def test_marks_older_than_what_is_remembered_count_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_KEPT_MARKS", 2)
    found = Contents()
    old = found.mark(("", "z"))
    for number in range(5):
        found.put(thing(f"t{number}", number + 1))
    await asyncio.wait_for(found.changed(old), 1)
    assert len(found._changes) == 2
    fresh = asyncio.ensure_future(found.changed(found.mark(("", "z"))))
    await asyncio.sleep(0)
    assert not fresh.done()
    fresh.cancel()
