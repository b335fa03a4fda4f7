"""A sweep over learning rates: one mapped task for each, side by side on parts of one slice; the best one is chosen.

A rate at which the loss breaks down fails alone. With no connection at all it runs on simulated slices on this machine.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_raytpu import CheckpointPolicy
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator

SLICE, PART, PARTS = "v6e:4x4", "v6e:2x2/4x4", 4

with DAG(
    "sweep",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
    render_template_as_native_obj=True,
    params={
        "learning_rates": Param(
            [0.0003, 0.001, 0.003, 0.01],
            type="array",
            items={"type": "number", "exclusiveMinimum": 0},
            minItems=1,
            description="Peak learning rates of AdamW; each is a training of its own.",
        ),
        "steps": Param(30, type="integer", minimum=1, description="Steps of each training."),
        "width": Param(128, type="integer", minimum=32, multipleOf=32, description="Size of the model's layers."),
        "layers": Param(2, type="integer", minimum=1, maximum=48, description="How many of them."),
    },
):

    @task
    def texts(dag_run: Any = None) -> dict[str, str]:
        """Write the text as windows of bytes."""
        from airflow_raytpu.hooks.raytpu import RayTpuHook
        from language_model.data import write_windows

        return write_windows(f"{RayTpuHook().storage}/sweep/{dag_run.run_id}/data", length=64)

    @task
    def configs(params: dict[str, Any]) -> list[dict[str, Any]]:
        """One config for each learning rate."""
        same = {"width": params["width"], "layers": params["layers"], "steps": params["steps"]}
        same |= {"global_batch_size": 16, "evaluate_every": 10, "seed": 0}
        return [{**same, "learning_rate": rate} for rate in params["learning_rates"]]

    data = texts()

    cluster = RayTpuClusterOperator(task_id="cluster", slice=SLICE)

    # Airflow counts a deferred task here as well, so no more of them are at work than the slice has parts.
    train = JaxTrainerOperator.partial(
        task_id="train",
        cluster=cluster,
        slice=PART,
        train_loop="language_model.train:train_loop_per_worker",
        datasets={"train": data["docstrings"], "held_out": data["docstrings_held_out"]},
        checkpoint=CheckpointPolicy(every_steps=10, keep=1, best=("held_out", "min")),
        max_active_tis_per_dag=PARTS,
    ).expand(train_loop_config=configs())

    @task(trigger_rule="all_done")
    def choose(trained: list[dict[str, Any]]) -> dict[str, Any]:
        """The training with the least held-out loss, of those that came to their end."""
        results = [result for result in trained if "held_out" in result["metrics"]]
        if not results:
            raise ValueError("no training came to its end")
        best = min(results, key=lambda result: result["metrics"]["held_out"])
        return {
            "learning_rate": best["metrics"]["learning_rate"],
            "held_out": best["metrics"]["held_out"],
            "checkpoint": best["best_checkpoint"],
            "of": {str(result["metrics"]["learning_rate"]): result["metrics"]["held_out"] for result in results},
        }

    cluster.teardown(after=[choose(train.output)])
