"""New data trains a model, and a new model scores: three DAGs that know nothing of each other but two assets.

The event of an asset says what was made: the paths of the data, or the checkpoint with its step and metrics. Each
training begins with the weights of the one before. With no connection at all it runs on simulated slices on this
machine; turn all three on and trigger the first.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_raytpu import CheckpointPolicy
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator

SLICE = "v6e:2x2"
LEAST_ACCURACY = 0.9

new_data = Asset("digits-data")
new_model = Asset("digits-model")

common: dict[str, Any] = {"catchup": False, "doc_md": __doc__, "tags": ["raytpu", "example"], "max_active_runs": 1}


def cluster_of_all() -> RayTpuClusterOperator:
    """By this name the DAGs find the same cluster; unused, it goes by itself."""
    return RayTpuClusterOperator(task_id="cluster", name="digits", slice=SLICE)


def newest(events: Any) -> Any:
    """Of the events that led to a run, all since the run before: Airflow gives them in no order."""
    if not events:
        raise ValueError("no asset has begun this run; trigger digits_data instead")
    return max(events, key=lambda event: event.timestamp)


with DAG("digits_data", schedule=None, **common):

    @task(outlets=[new_data])
    def collect(dag_run: Any = None, outlet_events: Any = None) -> None:
        """Stands for what brings the day's data: the same digits each time, with the same ones kept for the test."""
        from airflow_raytpu.hooks.raytpu import RayTpuHook
        from digits.data import write_parquet

        outlet_events[new_data].extra = write_parquet(f"{RayTpuHook().storage}/digits_data/{dag_run.run_id}")

    collect()


with DAG(
    "digits_retrain",
    schedule=[new_data],
    render_template_as_native_obj=True,
    params={"steps": Param(100, type="integer", minimum=1, description="Training steps.")},
    **common,
):

    @task
    def arrived(triggering_asset_events: Any = None) -> dict[str, str]:
        """The paths of the newest data that this run is about."""
        return dict(newest(triggering_asset_events[new_data]).extra)

    JaxTrainerOperator(
        task_id="train",
        cluster=cluster_of_all(),
        train_loop="digits.train:train_loop_per_worker",
        train_loop_config={
            "steps": "{{ params.steps }}",
            "learning_rate": 0.003,
            "global_batch_size": 160,
            "seed": 0,
        },
        datasets={"train": arrived()["train"]},
        checkpoint=CheckpointPolicy(every_steps=50),
        # The first run has none before it, and begins afresh.
        warm_start="previous_run",
        outlets=[new_model],
    )


with DAG("digits_score", schedule=[new_model], **common):

    @task(inlets=[new_data])
    def announced(triggering_asset_events: Any = None, inlet_events: Any = None, dag_run: Any = None) -> dict[str, Any]:
        """The checkpoint that this run is about, rows that no training has seen, and where the scores go."""
        from airflow_raytpu.hooks.raytpu import RayTpuHook

        made = newest(triggering_asset_events[new_model]).extra
        return {
            "checkpoint": made["checkpoint"],
            "loss": made["metrics"]["loss"],
            "rows": inlet_events[new_data][-1].extra["test"],
            "scores": f"{RayTpuHook().storage}/digits_score/{dag_run.run_id}",
        }

    model = announced()

    @task.jax_batch(cluster=cluster_of_all(), output=model["scores"], batch_size=128)
    def score(model, batch):
        """The digit in each row of *batch*, by what training has saved."""
        import jax

        first, second = (model["params"]["params"][name] for name in ("Dense_0", "Dense_1"))
        hidden = jax.nn.relu(batch["pixels"] @ first["kernel"] + first["bias"])
        return {"digit": (hidden @ second["kernel"] + second["bias"]).argmax(axis=-1).astype("int32")}

    @task
    def evaluate(made: dict[str, Any], scores: str) -> dict[str, Any]:
        """Compare the scores with the labels; a model that is not good enough fails here."""
        from digits.data import accuracy

        value = accuracy(scores)
        if value < LEAST_ACCURACY:
            raise ValueError(f"{made['checkpoint']}: accuracy {value:.3f} is below {LEAST_ACCURACY}")
        return {"checkpoint": made["checkpoint"], "loss": made["loss"], "accuracy": value}

    evaluate(model, score(model["checkpoint"], model["rows"])["output"])
