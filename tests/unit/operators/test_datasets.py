"""What an author says of a dataset: rendered like everything else, followed to its task, refused when it cannot be."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_raytpu import Dataset
from airflow_raytpu.explain.asking import _addresses
from airflow_raytpu.model.errors import PathError, RequestError
from airflow_raytpu.operators import JaxTrainerOperator
from airflow_raytpu.operators._arguments import Target


def trainer(datasets, **more):
    settings = {"task_id": "train", "train_loop": "json:dumps", "slice": "v6e:4x4"}
    return JaxTrainerOperator(**{**settings, "datasets": datasets, **more})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "2026-11-30").mkdir()
    (tmp_path / "2026-11-30" / "a.parquet").touch()
    return tmp_path


def built(operator, **context):
    operator.render_template_fields(context)
    return operator.build(Target(slice="v6e:4x4"))["datasets"]


@pytest.mark.parametrize("stated", [Dataset, lambda uri, **more: {"uri": uri, **more}])
def test_the_address_of_a_dataset_is_a_template(folder, stated):
    operator = trainer({"train": stated(f"{folder}/{{{{ ds }}}}", ragged="pad", columns=["x"])})

    assert built(operator, ds="2026-11-30") == {
        "train": {"uri": (folder / "2026-11-30").as_uri(), "ragged": "pad", "columns": ["x"]}
    }


def test_an_address_alone_is_asked_for_as_it_always_was(folder):
    assert built(trainer({"train": f"{folder}/{{{{ ds }}}}"}), ds="2026-11-30") == {
        "train": (folder / "2026-11-30").as_uri()
    }


def test_other_fields_of_a_mapping_may_be_templates_too(folder):
    stated = {"uri": f"{folder}/*", "ragged": "{{ params.ragged }}"}

    assert built(trainer({"train": stated}), params={"ragged": "raise"})["train"]["ragged"] == "raise"
    with pytest.raises(RequestError, match="ragged='keep'"):
        built(trainer({"train": stated}), params={"ragged": "keep"})


def test_a_dataset_of_another_task_is_waited_for_and_serialised():
    with DAG("digits", schedule=None) as dag:

        @task
        def split():
            return {"train": "/x"}

        trainer({"train": Dataset(split()["train"], ragged="pad")})

    assert dag.get_task("train").upstream_task_ids == {"split"}
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.get_task("train").datasets["train"]["ragged"] == "pad"


def test_a_mapped_task_has_datasets_like_any_other():
    with DAG("sweep", schedule=None) as dag:
        JaxTrainerOperator.partial(
            task_id="train", train_loop="json:dumps", slice="v6e:4x4", datasets={"train": Dataset("/x", ragged="pad")}
        ).expand(train_loop_config=[{"steps": 1}, {"steps": 2}])

    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_explain_shows_where_it_lies():
    assert _addresses(trainer({"train": Dataset("/x", ragged="pad"), "test": "/y"})) == {"train": "/x", "test": "/y"}


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"uri": "/x", "ragged": "keep"}, RequestError, "ragged='keep'"),
        ({"path": "/x"}, RequestError, "uri is needed"),
        (Dataset("s3://bucket/x"), (PathError, RequestError), "s3://bucket/x"),
    ],
)
def test_what_cannot_be_is_refused_when_the_dag_is_parsed(stated, error, message):
    with pytest.raises(error, match=message):
        trainer({"train": stated})


def test_a_dataset_that_is_not_there_is_refused_before_anything_runs(folder):
    with pytest.raises(PathError, match="does not exist"):
        built(trainer({"train": Dataset(f"{folder}/{{{{ ds }}}}")}), ds="2026-11-29")


def test_a_dataset_that_came_to_nothing_is_named():
    operator = trainer({"train": Dataset("{{ nothing }}")})
    operator.datasets["train"]["uri"] = None

    with pytest.raises(RequestError, match=r"datasets\['train'\] is None"):
        operator.build(Target(slice="v6e:4x4"))
