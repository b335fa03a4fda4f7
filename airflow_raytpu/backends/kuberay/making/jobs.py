"""RayJob: a job with a cluster of its own, which KubeRay takes down again whatever becomes of Airflow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from airflow_raytpu.backends import rayjobs, rayslices
from airflow_raytpu.backends.kuberay.making.problems import Problem, read_yaml
from airflow_raytpu.model.kuberay import KubeRayOptions, Provisioning
from airflow_raytpu.model.request import RayRequest

EXACT = ("jobId", "entrypoint", "metadata")
"""What nobody may lay anything over: by it the job is found, and what it runs."""

MARGIN_S = 300.0
"""How much later than ours KubeRay's deadlines are, so that ours, which say why, come first."""

KEPT_S = 120
"""Seconds that the cluster is kept after the job: Airflow reads the last lines of the log and deletes it earlier."""


def fields(request: RayRequest, options: KubeRayOptions, now: float) -> dict[str, Any]:
    """What is ours in any RayJob, one that the author wrote included.

    :param now: seconds since the epoch; KubeRay counts its deadlines from about then.
    """
    runtime_env = {} if request.code is None else {"working_dir": request.code}
    return {
        # The operator submits over HTTP: no submitter pod, which would cost a CPU and be tried again by itself.
        "submissionMode": "HTTPMode",
        "jobId": request.name,
        # Of this line, which Ray hands to a shell, the URI alone is not fixed, and it is quoted.
        "entrypoint": rayjobs.entrypoint(request),
        "runtimeEnvYAML": yaml.safe_dump(runtime_env),
        "metadata": {rayslices.OWNER: request.identity.owner()},
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": KEPT_S,
        # A second cluster is for the next attempt to ask for, which goes on from the checkpoint.
        "backoffLimit": 0,
        "activeDeadlineSeconds": _active(request, options, now),
        "preRunningDeadlineSeconds": _seconds(request.limits.slice_until + request.limits.start_s - now),
    }


def runtime_env_problems(text: Any, request: RayRequest) -> Iterator[Problem]:
    """An author may add to the runtime environment, but the code is the staged one."""
    found = read_yaml(text)
    if found is None:
        yield Problem("spec.runtimeEnvYAML", text, "an object as YAML")
    elif found.get("working_dir") != request.code:
        yield Problem(
            "spec.runtimeEnvYAML: working_dir", found.get("working_dir"), f"{request.code!r}, the staged code"
        )


def _active(request: RayRequest, options: KubeRayOptions, now: float) -> int:
    """Until ``total``, or until nodes with a run limit are gone in any case.

    KubeRay counts from the first look at a cluster that may start: under Kueue that is after the wait for nodes.
    """
    total = _seconds(request.limits.total_until - now)
    if options.run_limit_s is None:
        return total
    waits = options.provisioning is not Provisioning.QUEUED and not options.queue
    wait = max(0.0, request.limits.slice_until - now) if waits else 0.0
    return min(total, max(1, math.floor(options.run_limit_s + wait)))


def _seconds(left: float) -> int:
    return max(1, math.ceil(left + MARGIN_S))
