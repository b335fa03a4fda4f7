"""The main job: real scanned digits are prepared, learnt on a whole TPU slice, scored in batch, served and asked.

With no connection at all it runs on simulated slices on this machine.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_raytpu import CheckpointPolicy, Deadlines, RetryBudget, Rollout
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayServeDeployOperator,
    RayTpuClusterOperator,
)
from airflow_raytpu.operators.params import accelerator_params

LEAST_ACCURACY = 0.95

with DAG(
    "digits",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
    render_template_as_native_obj=True,
    params={
        **accelerator_params(accelerator="v6e", topology="4x4"),
        "steps": Param(300, type="integer", minimum=1, maximum=100_000, description="Training steps."),
        "learning_rate": Param(
            0.003, type="number", exclusiveMinimum=0, maximum=1, description="Peak learning rate of Adam."
        ),
        "batch_size": Param(
            160,
            type="integer",
            minimum=1,
            description="Rows in one step over the whole slice; divides over its chips (16 on a 4x4).",
        ),
        "seed": Param(0, type="integer", description="Seed of the split, the first weights and the batch order."),
    },
):

    @task
    def data(seed: int, dag_run: Any = None) -> dict[str, str]:
        """Write 1,797 scanned digits as Parquet, split into train and test."""
        from airflow_raytpu.hooks.raytpu import RayTpuHook
        from digits.data import write_parquet

        return write_parquet(f"{RayTpuHook().storage}/digits/{dag_run.run_id}/data", seed=seed)

    paths = data(seed="{{ params.seed }}")

    cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.accelerator }}:{{ params.topology }}")

    train = JaxTrainerOperator(
        task_id="train",
        cluster=cluster,
        train_loop="digits.train:train_loop_per_worker",
        train_loop_config={
            "steps": "{{ params.steps }}",
            "learning_rate": "{{ params.learning_rate }}",
            "global_batch_size": "{{ params.batch_size }}",
            "seed": "{{ params.seed }}",
        },
        datasets={"train": paths["train"]},
        checkpoint=CheckpointPolicy(every_steps=100, keep=2),
        retry_budget=RetryBudget(failures=1),
        deadlines=Deadlines(slice_wait=timedelta(minutes=10), stall=timedelta(minutes=5), total=timedelta(hours=1)),
    )

    infer = IterJaxBatchInferenceOperator(
        task_id="infer",
        cluster=cluster,
        predict="digits.infer:predict",
        model=train.output["checkpoint"],
        input=paths["test"],
        output=paths["scores"],
        batch_size=128,
        ragged="pad",
    )

    @task
    def evaluate(scores: dict[str, Any]) -> dict[str, Any]:
        """Compare the scores with the labels; a model that is not good enough is not served."""
        from digits.data import accuracy

        value = accuracy(scores["output"])
        if value < LEAST_ACCURACY:
            message = f"accuracy {value:.3f} is below {LEAST_ACCURACY}; raise steps or lower learning_rate"
            raise ValueError(message)
        return {"accuracy": value, "rows": scores["rows_out"]}

    serve = RayServeDeployOperator(
        task_id="serve",
        cluster=cluster,
        app="digits.serve:build",
        model=train.output["checkpoint"],
        name="digits",
        rollout=Rollout(smoke=[{"json": {"pixels": [0.0] * 64}, "status": 200, "contains": "digit"}]),
    )

    @task
    def query(endpoint: str, test: str) -> dict[str, Any]:
        """Ask the endpoint about one real digit that training never saw."""
        from digits.data import ask

        return ask(endpoint, test)

    checked = evaluate(infer.output)
    answer = query(serve.output["endpoint"], paths["test"])
    checked >> serve
    cluster.teardown(after=[answer])
