"""However Airflow began a run: its tasks need nothing of it but its id, and share nothing with another run's."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk.exceptions import TaskDeferred
from airflow.utils.types import DagRunType

from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator
from tests.doubles.airflow_side import TaskInstance
from tests.doubles.scripted import ScriptedBackend, running

AT = datetime(2026, 11, 29, 10, tzinfo=UTC)


def run_id(kind: DagRunType, *, dated: bool) -> str:
    """As Airflow makes it."""
    return DagRun.generate_run_id(run_type=kind, logical_date=AT if dated else None, run_after=AT)


async def asked(of: str, place_with) -> list[RayRequest]:
    """What a cluster's task and a job's ask for in the run *of*, whose context has nothing but what every run has."""
    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    for operator in (
        RayTpuClusterOperator(task_id="cluster", slice="v6e:4x4"),
        JaxTrainerOperator(task_id="train", train_loop="json:dumps", slice="v6e:4x4"),
    ):
        ti = TaskInstance(task_id=operator.task_id, run_id=of)
        with pytest.raises(TaskDeferred):
            await operator.aexecute({"ti": ti, "dag_run": SimpleNamespace(start_date=AT)})
    return backend.requests


@pytest.mark.parametrize("dated", [True, False], ids=["dated", "without a logical date"])
@pytest.mark.parametrize("kind", list(DagRunType), ids=lambda kind: kind.value)
async def test_every_kind_of_run_is_asked_for_by_its_id(kind: DagRunType, dated: bool, place_with) -> None:
    of = run_id(kind, dated=dated)
    for request in await asked(of, place_with):
        assert request.identity.run_id == of


async def test_two_runs_of_the_same_second_and_no_date_share_nothing(place_with) -> None:
    ids = [run_id(DagRunType.ASSET_TRIGGERED, dated=False) for _ in range(2)]
    assert ids[0] != ids[1]
    requests = [request for each in ids for request in await asked(each, place_with)]
    assert len({request.name for request in requests}) == len({request.storage for request in requests}) == 4


async def test_each_of_twenty_mapped_tasks_finds_its_own_work_again(place_with) -> None:
    async def asks(index: int) -> RayRequest:
        operator = JaxTrainerOperator(
            task_id="train", train_loop="json:dumps", slice="v6e:4x4", train_loop_config={"index": index}
        )
        ti = TaskInstance(map_index=index, max_tries=1)
        with pytest.raises(TaskDeferred):
            await operator.aexecute({"ti": ti, "dag_run": SimpleNamespace(start_date=AT)})
        return backend.requests[-1]

    backend = ScriptedBackend([running(at=time.time())])
    place_with(backend)
    first = [await asks(index) for index in range(20)]
    assert len({request.name for request in first}) == 20
    for index in (3, 0, 19, 7, 12):
        again = await asks(index)
        assert again == first[index]
        assert again.arguments["train_loop_config"] == {"index": index}
    assert backend.verbs("stop") == []
