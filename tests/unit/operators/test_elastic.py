"""What an elastic training task asks for, and what it refuses before anybody is asked."""

import pytest

from airflow_raytpu import TpuSlice
from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import BatchSizeError, RequestError, SliceShapeError
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.operators import JaxTrainerOperator
from tests.doubles.airflow_side import TaskInstance, context
from tests.doubles.scripted import ScriptedBackend, succeeded


def trainer(**more):
    values = {"task_id": "train", "train_loop": "json:dumps", "slice": "v6e:4x4", "deferrable": False}
    return JaxTrainerOperator(**{**values, **more})


async def asked(operator, place_with):
    backend = ScriptedBackend([succeeded({"step": 1})])
    place_with(backend)
    await operator.aexecute(context(TaskInstance()))
    (request,) = backend.requests
    # As it comes to the driver.
    return RayRequest.from_dict(request.to_dict())


@pytest.mark.parametrize("one", ["v6e:4x4", TpuSlice("v6e", "4x4"), TpuSlice("v6e", "4x4", num_slices=3)])
async def test_the_most_slices_are_asked_for_and_both_numbers_go_along(one, place_with):
    request = await asked(trainer(slice=one, elastic=(1, 3)), place_with)

    assert request.slice == "v6e:4x4*3"
    assert Elastic.of(request.arguments) == Elastic(1, 3)


async def test_of_a_clusters_slices_it_takes_as_many_as_it_says(place_with):
    cluster = {"cluster": "shared", "slice": "v6e:4x4*4", "conn_id": "raytpu_default"}
    operator = trainer(slice=None, cluster=cluster, elastic=[2, 3])

    request = await asked(operator, place_with)

    assert (request.slice, request.cluster, request.arguments["elastic"]) == ("v6e:4x4*3", "shared", [2, 3])


async def test_a_task_that_is_not_elastic_says_nothing_of_it(place_with):
    request = await asked(trainer(slice="v6e:4x4*2"), place_with)

    assert request.slice == "v6e:4x4*2"
    assert "elastic" not in request.arguments


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"elastic": (0, 2)}, RequestError, r"elastic is \(0, 2\), which is no range from 1 on"),
        ({"elastic": (2, 1)}, RequestError, "no range"),
        ({"elastic": 2}, RequestError, "elastic is 2, which is no pair"),
        ({"elastic": (1, True)}, RequestError, "no pair of whole numbers"),
        ({"elastic": (1, 2), "slice": "v6e:4x4*3"}, RequestError, "slice asks for 3 slices, and elastic for 1 to 2"),
        ({"elastic": (1, 2), "slice": "v6e:2x2"}, SliceShapeError, "only where each has several hosts"),
        (
            {"elastic": (1, 2), "train_loop_config": {"global_batch_size": 48}},
            BatchSizeError,
            "With 2 of 1 to 2 slices: global_batch_size is 48, which does not divide over 32 chips",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(wrong, kind, says):
    with pytest.raises(kind, match=says) as caught:
        trainer(**wrong)
    assert caught.value.lever


def test_a_templated_slice_is_refused_when_it_is_rendered():
    operator = trainer(slice="{{ params.slice }}", elastic=(1, 2))
    operator.slice = "v6e:4x4*3"

    with pytest.raises(RequestError, match="slice asks for 3 slices"):
        operator.refuse_early()
