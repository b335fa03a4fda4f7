"""The DAGs of the rounds: one for each operator, place and way of waiting. What differs is in each run's ``conf``."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from chaos_work import CHECKPOINT_EVERY

from airflow_raytpu import CheckpointPolicy, Deadlines, RetryBudget, Rollout
from airflow_raytpu.operators import (
    IterJaxBatchInferenceOperator,
    JaxTrainerOperator,
    RayServeDeployOperator,
    RayTpuClusterOperator,
    RayTpuJobOperator,
)

BUDGET = RetryBudget(failures=0, evictions=5)
"""The programs never fail by themselves, so a failure that is counted is a loss that was taken for one."""

COMMON = {
    # One that is used up is a loss; the others are there so that the round goes on after it.
    "retries": 3,
    "retry_delay": timedelta(seconds=1),
    "ttl": timedelta(minutes=5),
    "deadlines": Deadlines(
        slice_wait=timedelta(minutes=4),
        start=timedelta(minutes=4),
        stall=timedelta(minutes=2),
        total=timedelta(minutes=12),
    ),
}


def conf(name: str) -> str:
    return f"{{{{ dag_run.conf['{name}'] }}}}"


WORK = {"folder": conf("folder"), "steps": conf("steps"), "nap_s": conf("nap_s")}


def job(where, **kwargs):
    per_host = kwargs.pop("per_host", False)
    RayTpuJobOperator(
        task_id="work", run="chaos_work:job", op_kwargs=WORK, per_host=per_host, retry_budget=BUDGET, **where, **kwargs
    )


def train(where, **kwargs):
    JaxTrainerOperator(
        task_id="work",
        train_loop="chaos_work:train",
        train_loop_config=WORK,
        checkpoint=CheckpointPolicy(every_steps=CHECKPOINT_EVERY, keep=100),
        retry_budget=BUDGET,
        **where,
        **kwargs,
    )


def infer(where, **kwargs):
    IterJaxBatchInferenceOperator(
        task_id="work",
        predict="chaos_work:predict",
        load="chaos_work:load",
        model=conf("model"),
        input=conf("input"),
        output=conf("output"),
        batch_size=16,
        **where,
        **kwargs,
    )


def serve(where, **kwargs):
    RayServeDeployOperator(
        task_id="work",
        app="chaos_work:serve",
        app_args={"folder": conf("folder"), "version": conf("token"), "nap_s": conf("nap_s")},
        name="echo",
        route_prefix="/echo",
        rollout=Rollout(smoke=[{"path": "/", "contains": "version"}], deadline=timedelta(minutes=3)),
        cluster=where["cluster"],
        **kwargs,
    )


def cluster(where, **kwargs):
    made = RayTpuClusterOperator(task_id="cluster", slice=where["slice"], **kwargs)
    RayTpuJobOperator(task_id="work", run="chaos_work:job", op_kwargs=WORK, cluster=made, retry_budget=BUDGET, **kwargs)
    made.teardown()


PLACES = {
    "shared": {"slice": conf("slice"), "cluster": conf("cluster")},
    "own": {"slice": conf("slice")},
}
KINDS = {
    "job": (job, ("shared", "own")),
    "hosts": (lambda where, **kwargs: job(where, per_host=True, **kwargs), ("shared",)),
    "train": (train, ("shared", "own")),
    "infer": (infer, ("shared", "own")),
    "serve": (serve, ("shared",)),
    "cluster": (cluster, ("own",)),
}

for kind, (make, places) in KINDS.items():
    for place in places:
        for deferrable in (True, False):
            waits = "triggerer" if deferrable else "worker"
            with DAG(
                f"{kind}_{place}_{waits}",
                schedule=None,
                catchup=False,
                max_active_runs=50,
                render_template_as_native_obj=True,
            ):
                make(PLACES[place], deferrable=deferrable, **COMMON)
