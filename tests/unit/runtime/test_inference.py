"""What a batch inference does again after a loss, and which slices it blames; the mesh is played."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from airflow_raytpu.model.errors import LostError, PathError, StartTimeout
from airflow_raytpu.model.request import Kind
from airflow_raytpu.placement.plan import plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import inference, output, tries
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.buckets import RefusedError
from airflow_raytpu.runtime.inference import _Inference, _Stream
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.tenancy import Tenancy

HELD = ReservedSlice(plan(TpuSlice.parse("v6e:2x2")), None, ())
LOST = LostError("host 0 of slice a was lost.")
ECHO = AuthorError("predict raised JaxRuntimeError on host 1.", "frames", 2.0, collateral=True)


@pytest.fixture
def infer(make_request, write_rows, tmp_path, monkeypatch):
    """An inference of three files, and one without rows; each try writes as many as told and ends as told."""

    def infer(*ends):
        request = make_request(
            kind=Kind.INFERENCE,
            arguments={
                "predict": "m:f",
                "load": None,
                "model": None,
                "input": write_rows(9, 7, 0, 8),
                "output": (tmp_path / "out").as_uri(),
                "batch_size": 8,
                "ragged": "pad",
                "columns": None,
            },
        )
        made = _Inference(request, Outbox(request, write=lambda *_: None), HELD.plan)
        made.began_with, made.doubts, left = [], 0, list(ends)

        class Held(Tenancy):
            def take(self, until):
                return HELD

            def doubt(self):
                made.doubts += 1
                return True

        class Stream(_Stream):
            def run(self):
                count, end = left.pop(0)
                made.began_with.append(sorted({piece.part for host in self._work for piece in host.pieces}))
                for number in list(self._left)[:count]:
                    part = self._left[number]
                    output.write(
                        part, self._folder, {"y": np.zeros(part.keep)}, {"request": request.name, "model": None}
                    )
                    self._commits["reference"] = 0, number
                    self._take_commit("reference")
                if end:
                    raise end

        class Crew(contextlib.nullcontext):
            def __init__(self, *_):
                super().__init__(self)

            def answer(self, reference, number): ...

        monkeypatch.setattr(tries, "Tenancy", Held)
        monkeypatch.setattr(inference, "_Stream", Stream)
        monkeypatch.setattr(inference, "_Crew", Crew)
        monkeypatch.setattr(inference, "cause_of", lambda error, held: LOST if error is ECHO else error)
        return made

    return infer


def test_a_try_after_a_loss_does_the_parts_that_are_left_and_doubts_slices_that_wrote_none(infer):
    made = infer((1, LOST), (0, LOST), (1, ECHO), (0, ECHO), (1, None))

    value = made.run()

    assert made.began_with == [[0, 1, 3], [1, 3], [1, 3], [3], [3]]
    assert made.doubts == 2
    assert (value["rows_in"], value["rows_out"], value["parts"], value["parts_skipped"]) == (24, 24, 4, 0)
    assert (value["evictions"], value["causes"][0]) == (4, "evictions 1: host 0 of slice a was lost.  [RT204]")


def test_a_loss_after_the_last_part_costs_nothing(infer, caplog):
    made = infer((3, ECHO))

    assert made.run()["evictions"] == 0

    assert "All parts had been written when this happened: host 0 of slice a was lost." in caplog.text


def test_what_is_no_loss_is_not_tried_again(infer):
    own = AuthorError("predict raised ValueError on host 1.", "frames", 2.0)
    with pytest.raises(AuthorError, match="ValueError"):
        infer((0, own)).run()


def test_losses_end_it_in_the_end(infer):
    made = infer(*[(0, LOST)] * 21)
    with pytest.raises(LostError):
        made.run()
    assert made._tries.tally.spent.evictions == 20


def test_a_model_or_an_output_out_of_reach_is_known_before_there_is_a_slice(infer, tmp_path, monkeypatch):
    made = infer()
    made._arguments = {**made._arguments, "model": (tmp_path / "model").as_uri()}
    with pytest.raises(PathError, match=r"There is no checkpoint at .*/model"):
        made.run()

    made = infer()

    def refused(uri):
        raise RefusedError(f"{uri} could not be written: no right")

    monkeypatch.setattr(inference.files, "make_folder", refused)
    with pytest.raises(RefusedError, match="no right"):
        made.run()
    assert made.began_with == []


def test_a_second_start_is_counted_here_since_airflow_would_count_it_as_a_stall(make_request, monkeypatch):
    request = make_request(kind=Kind.INFERENCE)
    now, outbox = [1000.0], Outbox(request, write=lambda *_: None, clock=lambda: 0.0)
    monkeypatch.setattr(inference.time, "time", lambda: now[0])
    monkeypatch.setattr(inference.relay, "collect", lambda *_: None)
    outbox.tell(phase="compiling", first_at=500.0, slice_at=400.0)
    stream = _Stream(request, outbox, None, {}, (), "file:///out", lambda: None)

    while now[0] < 1000.0 + request.limits.start_s:
        stream._tell()
        assert outbox.latest.at == now[0]
        now[0] += 60.0

    with pytest.raises(StartTimeout, match="No row within 1200 s of the mesh"):
        now[0] += 1.0
        stream._tell()
