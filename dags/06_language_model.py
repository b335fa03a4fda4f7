"""A small language model, trained twice: on the standard library's docstrings, then on the language reference.

Its weights are in parts over the slice's chips (FSDP). In the middle of the second training a host is killed, and the
run goes on from its last checkpoint. With no connection at all it runs on simulated slices on this machine.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_raytpu import CheckpointPolicy, slice_params
from airflow_raytpu.operators import JaxTrainerOperator, RayTpuClusterOperator

SAVE_EVERY = 10
MOST_LEFT = 0.95
"""So much of the loss may be left at the end of the second training."""

with DAG(
    "language_model",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["raytpu", "example"],
    render_template_as_native_obj=True,
    params={
        **slice_params(default="v6e:2x4@4t"),
        "width": Param(256, type="integer", minimum=32, multipleOf=32, description="Size of the model's layers."),
        "layers": Param(4, type="integer", minimum=1, maximum=48, description="4 of width 256 are 3 million weights."),
        "length": Param(128, type="integer", minimum=16, description="Bytes that the model looks at."),
        "batch_size": Param(16, type="integer", minimum=1, maximum=64, description="Windows in one step."),
        "learning_rate": Param(0.003, type="number", exclusiveMinimum=0, maximum=1, description="The peak, of AdamW."),
        "pretrain_steps": Param(40, type="integer", minimum=1, description="Steps on the docstrings."),
        "finetune_steps": Param(40, type="integer", minimum=1, description="Steps on the language reference."),
        "kill_at_step": Param(
            25,
            type="integer",
            minimum=0,
            description="Step of the second training at which a host is killed, once; 0 for never. "
            f"From {2 * SAVE_EVERY} on there is a checkpoint to go on from.",
        ),
    },
):

    @task
    def texts(length: int, dag_run: Any = None) -> dict[str, str]:
        """Write both texts as windows of bytes."""
        from airflow_raytpu.hooks.raytpu import RayTpuHook
        from language_model.data import write_windows

        return write_windows(f"{RayTpuHook().storage}/language_model/{dag_run.run_id}/data", length)

    data = texts("{{ params.length }}")

    cluster = RayTpuClusterOperator(task_id="cluster", slice="{{ params.slice }}")

    def train(task_id: str, text: str, config: dict[str, Any], **more: Any) -> JaxTrainerOperator:
        return JaxTrainerOperator(
            task_id=task_id,
            cluster=cluster,
            train_loop="language_model.train:train_loop_per_worker",
            train_loop_config={
                "width": "{{ params.width }}",
                "layers": "{{ params.layers }}",
                "global_batch_size": "{{ params.batch_size }}",
                "learning_rate": "{{ params.learning_rate }}",
                "evaluate_every": SAVE_EVERY,
                "seed": 0,
                **config,
            },
            datasets={"train": data[text], "held_out": data[f"{text}_held_out"]},
            checkpoint=CheckpointPolicy(every_steps=SAVE_EVERY, keep=2, best=("held_out", "min")),
            **more,
        )

    pretrain = train("pretrain", "docstrings", {"steps": "{{ params.pretrain_steps }}"})

    finetune = train(
        "finetune",
        "topics",
        {
            "steps": "{{ params.finetune_steps }}",
            "kill_at_step": "{{ params.kill_at_step }}",
            "kill_marker": data["killed"],
        },
        warm_start=pretrain.output["checkpoint"],
    )

    @task
    def verdict(trained: dict[str, Any], kill_at_step: int) -> dict[str, Any]:
        """Whether it has learnt, and went on after the kill; a run that did not is no success."""
        metrics = trained["metrics"]
        before, after, resumed_at = metrics["held_out_at_start"], metrics["held_out"], int(metrics["resumed_at"])
        if not after <= MOST_LEFT * before:  # nor where it is no number
            raise ValueError(f"the held-out loss went from {before:.3f} to {after:.3f}; raise finetune_steps")
        if kill_at_step and not (trained["evictions"] and resumed_at):
            raise ValueError(
                f"killed at step {kill_at_step}: {trained['evictions']} evictions, resumed at {resumed_at}"
            )
        return {
            "held_out": [before, after],
            "evictions": trained["evictions"],
            "resumed_at": resumed_at,
            "checkpoint": trained["best_checkpoint"],
        }

    cluster.teardown(after=[verdict(finetune.output, "{{ params.kill_at_step }}")])
