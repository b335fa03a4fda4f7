"""What can keep a cluster from coming up, and which of it waiting will never mend. Pure.

The table is a decision, row by row. Final is what only the author or an administrator can mend by changing something
that was asked for; but Kubernetes tries most things again, and people create a missing secret a minute later, so most
of it must have stood for some time before it is believed. All else waits until ``slice_wait`` decides: capacity, quota
and registries come back. The first row that fits counts; what fits none waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_raytpu.backends.kuberay.observing.reading import line
from airflow_raytpu.model.errors import (
    ClusterError,
    ForbiddenError,
    ManifestError,
    NoSliceError,
    NotInstalledError,
    RayTpuError,
)
from airflow_raytpu.model.observation import Fault
from airflow_raytpu.model.slices import span

_AT_ONCE, _SOON, _MINUTES = 0.0, 30.0, 300.0
_IAM_SPREADS = 600.0
"""Google says that a change of IAM takes 7 minutes or more to be known everywhere."""
_LOOKED_AT = 4000
"""Characters of a message that are looked at."""
_RESTARTS = 5
"""Restarts after which a container that ends by itself is given up: with the kubelet's back-off about 5 minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row.

    :param reasons: reasons of events, conditions and containers that it is about; none for any.
    :param says: what the message must say as well, a regular expression.
    :param final_after_s: seconds it must stand before waiting is given up; ``None``: it may pass, so it waits.
    :param restarts: restarts of the container that it takes as well.
    :param what: the cause in plain words.
    :param why: why waiting mends it or does not.
    """

    reasons: tuple[str, ...] = ()
    says: str = ""
    final_after_s: float | None = None
    restarts: int = 0
    error: type[RayTpuError] = ClusterError
    what: str = ""
    lever: str = ""
    why: str

    def fits(self, reason: str, message: str) -> bool:
        return (not self.reasons or reason in self.reasons) and bool(
            re.search(self.says, message[:_LOOKED_AT], re.IGNORECASE)
        )


_PULL = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError")
_REFUSED = ("FailedToCreateRayCluster", "FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedCreate")
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_INVALID = (
    "InvalidRayClusterSpec",
    "InvalidRayClusterMetadata",
    "InvalidRayJobSpec",
    "InvalidRayJobMetadata",
    "InvalidRayServiceSpec",
    "InvalidRayServiceMetadata",
)

CAUSES = (
    # What KubeRay refuses.
    Cause(
        reasons=_INVALID,
        final_after_s=_AT_ONCE,
        error=ManifestError,
        what="KubeRay refuses the object",
        lever="Correct what it names; the object itself has to change.",
        why="a pure function of the object: KubeRay says the same for ever, and only as an event",
    ),
    Cause(
        reasons=("InvalidRayClusterStatus", "InvalidRayJobStatus"),
        final_after_s=_MINUTES,
        error=ManifestError,
        what="KubeRay finds the object's status contradicts itself",
        lever="Delete the object and run the task again.",
        why="its next look may put the status right",
    ),
    # What the API server, its webhooks and its quotas refuse.
    Cause(
        reasons=_REFUSED,
        says=r"failed calling webhook|no endpoints available for service|connection refused|context deadline exceeded",
        what="an admission webhook does not answer",
        lever="See to the webhook's pods.",
        why="a webhook that restarts answers again",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"missing TPU_WORKER_ID|Identical TPU_WORKER_ID",
        what="the TPU webhook could not number the hosts",
        lever="Upgrade the TPU webhook to 1.2.1 or later.",
        why="a race between pods: KubeRay makes the pod anew",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"Number of workers in worker group not equal to specified topology|TPU topology not specified",
        final_after_s=_SOON,
        error=ManifestError,
        what="the TPU webhook refuses the cluster",
        lever="numOfHosts, google.com/tpu and the topology have to fit together.",
        why="a pure function of the object",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"exceeded quota",
        error=ForbiddenError,
        what="the namespace's quota is used up",
        lever="Free some of it, or ask for more.",
        why="quota is given back when others end",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"serviceaccount \S+ not found|no PriorityClass with name",
        final_after_s=_MINUTES,
        error=NotInstalledError,
        what="an account or a priority class that was named does not exist",
        lever="Create it, or correct its name.",
        why="somebody may be about to create it, but seldom takes longer than minutes",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"violates PodSecurity",
        final_after_s=_SOON,
        error=ForbiddenError,
        what="the namespace's pod security forbids the pods",
        lever="Leave out what it names (privileged, root), or run in a namespace that allows it.",
        why="a pure function of the pod and the namespace's labels",
    ),
    Cause(
        reasons=_REFUSED,
        says=r"admission webhook \S+ denied the request|denied by|is invalid:",
        final_after_s=_SOON,
        error=ManifestError,
        what="Kubernetes refuses the objects",
        lever="Correct what the message names.",
        why="a pure function of the object; some seconds, lest a policy was being rolled out just then",
    ),
    Cause(reasons=_REFUSED, what="objects cannot be created", why="not known to be for ever"),
    # Images.
    Cause(
        reasons=("InvalidImageName",),
        final_after_s=_AT_ONCE,
        error=ManifestError,
        what="the image's name cannot be read",
        lever="Correct the image.",
        why="no registry is asked, so none can change its mind",
    ),
    Cause(
        reasons=("ErrImageNeverPull",),
        final_after_s=_SOON,
        what="the image is not on the node and must not be pulled",
        lever="Use another image_pull_policy.",
        why="nobody puts it there",
    ),
    Cause(
        reasons=_PULL,
        says=r": (429|5\d\d)\b|toomanyrequests|timeout|deadline exceeded|connection re|no such host|unexpected EOF",
        what="the registry does not answer well",
        lever="See to the registry.",
        why="registries come back",
    ),
    Cause(
        reasons=_PULL,
        says=r"not found|manifest unknown|does not exist|no matching manifest|name unknown",
        final_after_s=_MINUTES,
        what="the image does not exist",
        lever="Correct the image, or push it.",
        why="a push may be under way, but not for many minutes",
    ),
    Cause(
        reasons=_PULL,
        says=r"unauthori[sz]ed|denied|forbidden|: 40[13]\b|no basic auth",
        final_after_s=_IAM_SPREADS,
        error=ForbiddenError,
        what="the registry forbids the image",
        lever="Give the nodes' account read access (Artifact Registry), or set image_pull_secrets.",
        why="a grant takes minutes to spread",
    ),
    Cause(reasons=_PULL, what="the image cannot be pulled", why="not known to be for ever"),
    # What a container is made with.
    Cause(
        reasons=("CreateContainerConfigError", "Unschedulable", *_MOUNT),
        says=r"(secrets?|configmaps?|persistentvolumeclaim) \S+ not found|couldn't find key",
        final_after_s=_MINUTES,
        what="a secret, config map or volume claim that was named does not exist",
        lever="Create it in the same namespace, or correct its name or key.",
        why="secrets are synchronised into a namespace within minutes",
    ),
    Cause(
        reasons=("CreateContainerConfigError",),
        says=r"runAsNonRoot|run as root|non-numeric user",
        final_after_s=_SOON,
        what="the image's user is not allowed",
        lever="Set a numeric runAsUser in pod_template.",
        why="a pure function of image and pod",
    ),
    Cause(
        reasons=_MOUNT,
        says=r"code = (NotFound|InvalidArgument)",
        final_after_s=_MINUTES,
        what="the bucket cannot be mounted",
        lever="Correct the bucket's name or the mount options.",
        why="a bucket may be created just now, but not for many minutes",
    ),
    Cause(
        reasons=_MOUNT,
        says=r"code = (PermissionDenied|Unauthenticated)",
        final_after_s=_IAM_SPREADS,
        error=ForbiddenError,
        what="the bucket may not be read",
        lever="Give the pods' service account roles/storage.objectUser on it.",
        why="a grant takes minutes to spread",
    ),
    Cause(reasons=_MOUNT, what="a volume cannot be mounted", why="not known to be for ever"),
    Cause(
        reasons=("Unschedulable", "FailedScheduling"),
        what="no node has room",
        why="nodes come with the autoscaler, with quota and with those who end",
    ),
    # A container that ends by itself.
    Cause(
        reasons=("CrashLoopBackOff", "RunContainerError", "StartError", "ContainerCannotRun"),
        final_after_s=_SOON,
        restarts=_RESTARTS,
        what="a container ends as soon as it starts",
        lever="See the pod's log: the image, its Ray version, its memory.",
        why="the kubelet starts it again, and has done so often enough",
    ),
    # Queues.
    Cause(
        reasons=("Inadmissible",),
        says=r"(LocalQueue|ClusterQueue) \S* ?(doesn't|does not) exist",
        final_after_s=_MINUTES,
        error=NotInstalledError,
        what="the queue does not exist",
        lever="Correct queue, or create it.",
        why="queues are made before the work that uses them",
    ),
    Cause(
        reasons=("Pending", "NoMatchingFlavor", "Inadmissible"),
        says=r"> maximum capacity|unavailable in ClusterQueue",
        final_after_s=_MINUTES,
        error=NoSliceError,
        what="the queue can never hold a request this large",
        lever="Ask for a smaller slice, or raise the ClusterQueue's nominalQuota.",
        why="it is more than the whole quota, not more than what is free",
    ),
    Cause(
        reasons=("Deactivated", "AdmissionCheckRejected"),
        final_after_s=_SOON,
        error=NoSliceError,
        what="Kueue has given the workload up",
        lever="See the workload's events; run the task again once it is mended.",
        why="Kueue never takes it up again by itself",
    ),
)

_UNKNOWN = Cause(why="not known to be for ever")


def cause_of(reason: str, message: str) -> Cause:
    """The row for it; one that waits where no row fits."""
    return next((cause for cause in CAUSES if cause.fits(reason, message)), _UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that is wrong now.

    :param reason: the word that Kubernetes has for it.
    :param who: what it is about, for people: ``worker pod x``, ``head``.
    :param since: since when it stands, in seconds since the epoch; 0 where nobody says.
    """

    reason: str
    message: str = ""
    who: str = ""
    since: float = 0.0
    restarts: int = 0

    @property
    def words(self) -> str:
        """``ImagePullBackOff, manifest unknown``."""
        return line(": ".join(filter(None, (self.reason, self.message))))

    def fault(self, now: float) -> Fault | None:
        """What makes waiting useless, once it has stood long enough."""
        cause = cause_of(self.reason, self.message)
        if cause.final_after_s is None or self.restarts < cause.restarts:
            return None
        if cause.final_after_s and not (self.since and now - self.since >= cause.final_after_s):
            return None
        about = ", ".join(filter(None, (self.who, self._for(cause, now))))
        what = f"{cause.what[0].upper()}{cause.what[1:]}" + (f" ({about})" if about else "")
        return Fault(code=cause.error.code, cause=f"{what}: {self.words.rstrip('.')}.", lever=cause.lever)

    def _for(self, cause: Cause, now: float) -> str:
        restarts = f"{self.restarts} restarts" if cause.restarts else ""
        return restarts or (f"for {span(now - self.since)}" if cause.final_after_s else "")


def first_fault(troubles: Iterable[Trouble], now: float) -> Fault | None:
    """The fault of the longest-standing trouble that has one, whatever their order."""
    ordered = sorted(troubles, key=lambda each: (each.since, each.reason, each.message, each.who, each.restarts))
    return next((fault for each in ordered if (fault := each.fault(now)) is not None), None)
