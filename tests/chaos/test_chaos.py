"""The rounds follow from their seed, and each kind of loss is seen where there is one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.chaos import checks, diaries, draw
from tests.chaos.diaries import Start
from tests.chaos.draw import Fault, Moment, Round, When
from tests.chaos.outside import Task
from tests.chaos.play import Facts
from tests.chaos.strike import Strike

PLAN = Round(
    number=1,
    batch=1,
    kind="train",
    own=False,
    deferrable=True,
    slice=draw.ONE_HOST,
    steps=30,
    fault=Fault.NONE,
    moment=Moment(when=When.SAVING),
    leads=True,
)


def start(began, first, last, *, done=False, pid=7):
    steps = [{"what": "step", "step": step, "at": began + step - first + 1} for step in range(first, last + 1)]
    end = [{"what": "end", "at": began + last - first + 2}] if done else []
    return Start(({"what": "begin", "at": began, "pid": pid, "tick": "0", "node": "n"}, *steps, *end))


def facts(*starts, fault=Fault.NONE, struck_at=None, state="success", tries=1, log=(), **more):
    plan = replace(PLAN, fault=fault, **{name: more.pop(name) for name in ("kind",) if name in more})
    return Facts(
        plan,
        struck=None if struck_at is None else Strike(struck_at, struck_at, "it"),
        ended=100.0,
        over=True,
        task=Task(state, tries, 0.0, 100.0),
        starts=starts,
        log=list(log) or [(float(at), "info", "at work") for at in range(0, 100, 10)],
        died={each.began: each.last_at for each in starts},
        **more,
    )


def lost(found, stage=None):
    return checks.judge(stage, found).all()


def test_a_seed_gives_the_same_rounds_and_a_longer_row_begins_with_them():
    assert draw.rounds(3, 100)[:40] == draw.rounds(3, 40) != draw.rounds(4, 40)


def test_a_hundred_rounds_meet_every_fault_in_every_operator():
    drawn = [plan for seed in (1, 2) for plan in draw.rounds(seed, 100)]
    assert set(Counter(plan.fault for plan in drawn)) == set(Fault)
    assert {plan.kind for plan in drawn} == {"job", "hosts", "train", "infer", "serve", "cluster"}
    assert all(plan.deferrable for plan in drawn if plan.fault.value.startswith("triggerer"))


def test_a_round_that_went_well_lost_nothing():
    assert lost(facts(start(0, 1, 30, done=True))) == []


def test_a_restart_from_the_newest_checkpoint_lost_nothing():
    found = facts(
        start(0, 1, 20), start(40, 19, 30, done=True), fault=Fault.HOST_KILL, struck_at=20.5, commits={18: 18.2}
    )
    assert lost(found) == []
    judged = checks.judge(None, found)
    assert (judged.redone, judged.recovery_s) == (2, 20.5)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (facts(start(0, 1, 30), state="success"), "verdicts: Airflow has it as success, and the program had not"),
        (facts(start(0, 1, 30, done=True), state="failed"), "verdicts: Airflow has it as failed, and the program had"),
        (facts(start(0, 1, 30, done=True), start(10, 1, 5, done=True)), "duplicates: pid 7 worked until"),
        (facts(start(0, 1, 9), start(40, 1, 30, done=True)), "kills: pid 7 ended at step 9 of 30"),
        (facts(start(0, 1, 30, done=True), tries=2), "retries: 1 tries used"),
        (facts(start(0, 1, 30, done=True), log=[(0.0, "info", "hello")]), "silences: nothing was said for 100 s"),
        (facts(start(0, 1, 30, done=True), left=["driver of x"]), "orphans: driver of x"),
        (
            facts(
                start(0, 1, 20), start(40, 1, 30, done=True), fault=Fault.HOST_KILL, struck_at=20.5, commits={18: 1.0}
            ),
            "steps: went on from step 0, after step 20",
        ),
        (
            facts(start(0, 1, 99), fault=Fault.MARK_FAILED, struck_at=10.0, state="failed"),
            "kills: pid 7 ran on for over 60 s after a user had it marked failed",
        ),
        (
            facts(start(0, 1, 9), fault=Fault.MARK_FAILED, struck_at=10.0, state="success"),
            "verdicts: a user had it marked failed, and Airflow has it as success",
        ),
    ],
)
def test_each_loss_is_seen(found, said):
    assert any(line.startswith(said) for line in lost(found)), lost(found)


def test_rows_that_are_missing_or_there_twice_are_seen(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out").mkdir()
    stage = SimpleNamespace(diary=lambda _: tmp_path)
    rows = list(range(PLAN.rows))

    def write(ids):
        table = pa.table({"id": ids, "double": [2.0 * row for row in ids]})
        pq.write_table(table, tmp_path / "out" / "part.parquet")
        return lost(facts(start(0, 1, 30), kind="infer"), stage)

    assert write(rows) == []
    assert any("rows in" in line for line in write(rows[1:]))
    assert any("different ones" in line for line in write([*rows, 3]))


def test_a_diary_that_was_cut_off_is_read_to_its_last_whole_line(tmp_path):
    line = json.dumps({"what": "begin", "at": 1.0, "pid": 7, "tick": "0", "node": ""})
    (tmp_path / "1.jsonl").write_text(f'{line}\n{{"what": "st')
    (found,) = diaries.read(tmp_path)
    assert (found.began, found.step, found.done) == (1.0, 0, False)
