"""RayJobs that really run: submitted over HTTP, and mirrored."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from tests.doubles.kubernetes.contents import Contents
from tests.doubles.kubernetes.kuberay.clusters import is_ready_cluster
from tests.doubles.kubernetes.kuberay.jobs import ENDED, Jobs
from tests.doubles.kubernetes.kuberay.real_clusters import RealClusters
from tests.doubles.kubernetes.store import Item

_NOT_TRIED_AGAIN = {"DeadlineExceeded", "JobStatusCheckTimeoutExceeded"}


class RealJobs:
    """HTTPMode; a job of another mode is submitted in the same way, without a submitter.

    :ivar status_check_s: how long the dashboard may be silent before a job is given up.

    One look a round, one write a look: so ``jobStatus`` and ``jobDeploymentStatus`` do not move together.
    """

    def __init__(self, k: Contents, clusters: RealClusters) -> None:
        self._k = k
        self._clusters = clusters
        self._jobs = Jobs(k, clusters.clusters)
        self.status_check_s = 300.0

    async def round(self) -> None:
        for job in self._k.items("rayjobs"):
            if job["spec"].get("managedBy") != "kueue.x-k8s.io/multikueue":
                await self._reconcile(job)

    async def _reconcile(self, job: Item) -> None:
        status = job.get("status") or {}
        state = status.get("jobDeploymentStatus", "")
        if job["metadata"].get("deletionTimestamp"):
            await self._part(job)
        elif state in {"Initializing", "Running"} and job["spec"].get("suspend"):
            self._jobs.write(job, jobDeploymentStatus="Suspending")
        elif state in {"Initializing", "Running"} and self._too_long(job, "activeDeadlineSeconds"):
            self._jobs.over(job, "DeadlineExceeded", _overdue(job, "activeDeadlineSeconds"))
        else:
            await getattr(self, f"_{state.lower() or 'new'}")(job, status)

    async def _new(self, job: Item, _: Mapping[str, Any]) -> None:
        if self._jobs.faults(job):
            return
        if job["spec"].get("suspend"):
            self._jobs.write(job, jobDeploymentStatus="Suspended")
        else:
            self._jobs.initialize(job)

    async def _initializing(self, job: Item, status: Mapping[str, Any]) -> None:
        if self._too_long(job, "preRunningDeadlineSeconds"):
            self._jobs.over(job, "PreRunningDeadlineExceeded", _overdue(job, "preRunningDeadlineSeconds"))
            return
        cluster = self._jobs.make_cluster(job)
        if cluster is None:
            return
        self._jobs.note_cluster(job, cluster.get("status") or {})
        dashboard = self._clusters.dashboard(cluster)
        if not is_ready_cluster(cluster) or dashboard is None:
            return
        try:
            there = await dashboard.job(status["jobId"])
            refusal = "" if there else await dashboard.submit(job)
        except (aiohttp.ClientError, TimeoutError):
            return  # tried again with the next round
        if refusal:
            self._jobs.over(job, "SubmissionFailed", refusal)
        else:
            self._jobs.submitted(job)

    async def _running(self, job: Item, status: Mapping[str, Any]) -> None:
        if status.get("jobStatus") in ENDED:
            failed = status["jobStatus"] == "FAILED"
            self._jobs.over(job, "AppFailed" if failed else "")
            return
        try:
            found = await self._look(job, status["jobId"])
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unseen(job, status, str(error))
            return
        if status.get("jobStatusCheckFailureStartTime"):
            self._jobs.write(job, jobStatusCheckFailureStartTime=None)
        times = {name: _stamp(found[f"{name}_time"]) for name in ("start", "end") if found.get(f"{name}_time")}
        self._jobs.seen(job, found["status"], found.get("message") or "", **times)

    async def _look(self, job: Item, name: str) -> Mapping[str, Any]:
        """:raises ClientError: the dashboard does not answer, or does not know the job."""
        cluster = self._jobs.cluster(job)
        dashboard = self._clusters.dashboard(cluster) if cluster else None
        if dashboard is None:
            raise aiohttp.ClientError("the cluster is not there")
        found = await dashboard.job(name)
        if found is None:
            raise aiohttp.ClientError(f"the dashboard knows no job {name}")
        return found

    def _unseen(self, job: Item, status: Mapping[str, Any], why: str) -> None:
        since = status.get("jobStatusCheckFailureStartTime")
        if not since:
            self._jobs.write(job, jobStatusCheckFailureStartTime=self._k.objects.stamp())
        elif self._k.objects.now() - _seconds(since) > self.status_check_s:
            words = f"The job's status could not be read for {self.status_check_s:.0f} s: {why}"
            self._jobs.over(job, "JobStatusCheckTimeoutExceeded", words)

    async def _complete(self, job: Item, status: Mapping[str, Any]) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished", 0)
        over = self._k.objects.now() - _seconds(status["endTime"]) >= ttl
        if job["spec"].get("shutdownAfterJobFinishes") and over:
            self._jobs.remove_cluster(job)

    async def _failed(self, job: Item, status: Mapping[str, Any]) -> None:
        tries = job["spec"].get("backoffLimit", 0)
        if status.get("failed", 0) <= tries and status.get("reason") not in _NOT_TRIED_AGAIN:
            self._jobs.write(job, jobDeploymentStatus="Retrying")
        else:
            await self._complete(job, status)

    async def _retrying(self, job: Item, _: Mapping[str, Any]) -> None:
        self._jobs.remove_cluster(job)
        self._jobs.initialize(job)

    async def _suspending(self, job: Item, _: Mapping[str, Any]) -> None:
        self._jobs.remove_cluster(job)
        self._jobs.write(job, jobDeploymentStatus="Suspended", jobStatus="", rayClusterName=None, jobId=None)

    async def _suspended(self, job: Item, _: Mapping[str, Any]) -> None:
        if not job["spec"].get("suspend"):
            self._jobs.initialize(job)

    async def _validationfailed(self, job: Item, status: Mapping[str, Any]) -> None:
        """Until the object is changed."""
        if status.get("observedGeneration") != job["metadata"]["generation"]:
            await self._new(job, status)

    async def _part(self, job: Item) -> None:
        """A job that has not ended is stopped before its object goes."""
        status = job.get("status") or {}
        cluster = self._jobs.cluster(job)
        dashboard = self._clusters.dashboard(cluster) if cluster else None
        if dashboard is not None and status.get("jobStatus") in {"PENDING", "RUNNING"}:
            try:
                await dashboard.stop(status["jobId"])
            except (aiohttp.ClientError, TimeoutError):
                return
        self._jobs.let_go(job)

    def _too_long(self, job: Item, limit: str) -> bool:
        seconds, since = job["spec"].get(limit), (job.get("status") or {}).get("startTime")
        return bool(seconds and since) and self._k.objects.now() - _seconds(since) > seconds


def _overdue(job: Item, limit: str) -> str:
    return f"The RayJob has passed the {limit}: {job['spec'][limit]} s"


def _seconds(stamp: str) -> float:
    return calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))


def _stamp(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(milliseconds / 1000))
