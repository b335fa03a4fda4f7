"""One orphan after the other: spared, removed or resisting, none at the cost of another."""

from __future__ import annotations

import pytest

from airflow_raytpu.backends.reaping import reap
from airflow_raytpu.model.errors import BackendUnreachable, ClusterError
from airflow_raytpu.model.orphans import Fate, Orphan
from tests.doubles.scripted import ScriptedBackend, orphan


def three() -> list[Orphan]:
    return [orphan(name=name) for name in ("a", "b", "c")]


async def test_one_that_resists_does_not_keep_the_others() -> None:
    backend = ScriptedBackend(left=three(), ends=[ClusterError("It does not go."), False, True])
    found = await reap(backend, "tests", 3600)
    assert [(each.fate, each.says) for each in found] == [
        (Fate.RESISTS, "It does not go."),
        (Fate.SPARED, "somebody looks after it again"),
        (Fate.REAPED, ""),
    ]
    assert backend.calls == [("orphans", "tests 3600"), ("reap", "a"), ("reap", "b"), ("reap", "c")]


async def test_a_dry_run_removes_nothing() -> None:
    backend = ScriptedBackend(left=three())
    found = await reap(backend, "tests", 3600, dry_run=True)
    assert {each.fate for each in found} == {Fate.FOUND}
    assert backend.verbs("reap") == []


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_is_spared_is_not_touched_and_says_why(dry_run: bool) -> None:
    async def spare(each: Orphan) -> str:
        return "at work" if each.name == "b" else ""

    backend = ScriptedBackend(left=three())
    found = await reap(backend, "tests", 3600, dry_run=dry_run, spare=spare)
    assert [each.says for each in found] == ["", "at work", ""]
    assert found[1].fate is Fate.SPARED
    assert ("reap", "b") not in backend.calls


async def test_a_place_that_cannot_be_asked_is_an_error() -> None:
    class Away(ScriptedBackend):
        async def orphans(self, deployment: str, older_than_s: float) -> list[Orphan]:
            raise BackendUnreachable("No answer.")

    with pytest.raises(BackendUnreachable):
        await reap(Away(), "tests", 3600)
