"""What the serving operator asks for."""

from __future__ import annotations

import pytest

from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.operators import RayServeDeployOperator


def asked(**arguments):
    operator = RayServeDeployOperator(task_id="serve", app="json:loads", cluster="shared", **arguments)
    return operator.build(operator.target())["replica"]


def test_a_slice_is_the_replicas_own_only_where_it_is_stated():
    assert asked() is None
    assert asked(slice="v6e-4x4") == "v6e:4x4"


@pytest.mark.parametrize("text", ["v6e:4x4*2", "v6e:2x4/4x4"])
def test_a_replica_takes_one_whole_slice(text):
    with pytest.raises(RequestError, match="one whole slice"):
        asked(slice=text)
