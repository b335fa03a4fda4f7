"""A train loop that is the entry point of a program, and takes words instead of a config."""

import sys

import pytest

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.runtime.loop import _command_line, call_loop

TARGET = Target(slice="v6e:4x4")


def trainer(**more):
    return JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4", **more)


def test_words_are_handed_on_as_text():
    built = trainer(argv=["base.yml", "steps=10", "--rate", 1e-5]).build(TARGET)
    assert built["argv"] == ["base.yml", "steps=10", "--rate", "1e-05"]
    assert trainer().build(TARGET)["argv"] is None
    assert trainer(argv=[]).build(TARGET)["argv"] == []
    assert "argv" in JaxTrainerOperator.template_fields


@pytest.mark.parametrize(("argv", "why"), [("--steps 10", "one text"), ([None], "holds None"), (["a\0b"], "NUL")])
def test_what_is_no_command_line_is_refused(argv, why):
    with pytest.raises(RequestError, match=why):
        trainer(argv=argv).build(TARGET)


def test_a_config_beside_them_is_refused_when_the_dag_is_parsed():
    with pytest.raises(RequestError, match="both are stated"):
        trainer(argv=["a"], train_loop_config={"steps": 1})


def test_a_program_finds_them_wherever_it_looks(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["worker.py"])
    called = []
    call_loop(called.append, _command_line("maxtext.train:main", ("base.yml", "steps=10")))
    call_loop(lambda: called.append(sys.argv), _command_line("maxtext.train:main", ("base.yml",)))
    assert called == [["maxtext.train:main", "base.yml", "steps=10"], ["maxtext.train:main", "base.yml"]]
