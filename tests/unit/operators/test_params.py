"""The trigger form's fields."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu import TpuSlice, slice_params
from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.operators.params import accelerator_params


def test_every_slice_that_is_offered_exists_and_the_default_comes_first():
    offered = slice_params(default="v5e:4x4")["slice"].schema["examples"]
    assert offered[0] == "v5e:4x4"
    assert [str(TpuSlice.parse(text)) for text in offered] == offered
    assert len(set(offered)) == len(offered) > 20
    assert set(slice_params()["slice"].schema["values_display"]) == set(offered)


def test_a_slice_that_is_not_offered_may_still_be_typed():
    assert slice_params()["slice"].resolve("v6e:4x4*2") == "v6e:4x4*2"


def test_a_default_that_does_not_exist_is_refused():
    with pytest.raises(SliceShapeError):
        slice_params(default="v6e:5x5")
    with pytest.raises(SliceShapeError):
        accelerator_params(topology="5x5")


def test_further_parameters_are_kept():
    params = slice_params(steps=Param(300, type="integer", minimum=1), seed=0)
    assert params["steps"].resolve() == 300
    assert params["seed"].resolve() == 0


def test_the_choice_in_two_fields_is_limited_to_what_exists():
    params = accelerator_params("v6e", "4x4")
    assert params["accelerator"].schema["enum"] == ["v4", "v5e", "v5p", "v6e", "tpu7x"]
    with pytest.raises(ParamValidationError):
        params["topology"].resolve("4x5")


def test_a_dag_with_them_survives_serialisation():
    with DAG("d", schedule=None, params=slice_params() | accelerator_params()) as dag:
        pass
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).params["topology"] == "4x4"
