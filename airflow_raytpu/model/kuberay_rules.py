"""Which options for Kubernetes hold what no object can, and which do not go together. Read in 2026-11."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_raytpu.model.errors import ManifestError
from airflow_raytpu.model.supply import BucketMount, Provisioning, Resources

if TYPE_CHECKING:
    from airflow_raytpu.model.kuberay import KubeRayOptions

Flaw = tuple[str, str]
"""What is wrong, and what to do."""

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
MIN_RAY = (2, 53)
"""KubeRay 1.7 has token authentication from 2.52 on, and probes without ``wget`` from 2.53 on."""

OUR_LABELS = ("airflow-raytpu/", "ray.io/", "kueue.x-k8s.io/", "app.kubernetes.io/name", "app.kubernetes.io/managed-by")
OUR_ANNOTATIONS = ("airflow-raytpu/", "kueue.x-k8s.io/", "provreq.kueue.x-k8s.io/", "gke-gcsfuse/volumes")
OUR_SELECTORS = (
    "cloud.google.com/gke-tpu-",
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-flex-start",
    "cloud.google.com/gke-queued",
    "cloud.google.com/gke-max-run-duration",
    "cloud.google.com/reservation-",
    "cloud.google.com/compute-class",
)
OUR_VARIABLES = (
    "JAX_PLATFORMS",
    "MEGASCALE_",
    "RAY_ADDRESS",
    "RAY_AUTH_",
    "RAY_enable_autoscaler_v2",
    "RAY_REDIS_ADDRESS",
    "RAY_USE_TLS",
    "RAY_TLS_",
    "RAYTPU_ENDPOINT",
    "REDIS_PASSWORD",
    "REDIS_USERNAME",
    "TPU_NAME",
    "TPU_TOPOLOGY",
    "TPU_WORKER_",
)
"""Prefixes of what KubeRay, the TPU webhook or this package sets, each pod its own."""

IMPENDING = "cloud.google.com/impending-node-termination"
"""GKE's taint on a node that is about to go; a pod that bears it is not ended in time."""

_QUANTITY = re.compile(r"(\d+(\.\d+)?|\.\d+)([EPTGMk]i?|Ki|[munk])?", re.ASCII)
_NAME_LIMIT = 253
_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_SECRET = re.compile(r"(?P<name>[^/]+)/(?P<key>[-._a-zA-Z0-9]{1,253})", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+", re.ASCII)
_TAKEN_PATHS = ("/tmp", "/tmp/ray", "/dev", "/dev/shm", "/proc", "/sys", "/etc", "/home", "/home/ray")  # noqa: S108
_MOUNT_OPTIONS = re.compile(r"[A-Za-z0-9_=,:./-]*", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", re.ASCII)
_PULL = ("", "Always", "IfNotPresent", "Never")
_GRACE_S = 3600.0
_TOLERATION = frozenset(("key", "operator", "value", "effect", "tolerationSeconds"))


def check_options(options: KubeRayOptions) -> None:
    """Each value by itself, whatever the others are.

    :raises ManifestError: the first that cannot be.
    """
    _refuse(_flaws(options))


def check_together(options: KubeRayOptions) -> None:
    """What goes with what, when the connection's options and the task's are one.

    :raises ManifestError: the first contradiction.
    """
    _refuse(_contradictions(options))


def key_is_valid(key: str) -> bool:
    """Whether *key* can be a label's or an annotation's: a name, with a DNS name and a slash before it or without."""
    prefix, slash, name = key.rpartition("/")
    return bool(_KEY.fullmatch(name)) and (not slash or _is_dns_name(prefix))


def ray_version(text: str) -> tuple[int, ...] | None:
    """``2.60.0`` as ``(2, 60, 0)``; ``None`` for what KubeRay cannot read."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:[-+.][0-9A-Za-z.+-]+)?", text, re.ASCII)
    return tuple(map(int, match.groups())) if match else None


def _refuse(flaws: Iterator[Flaw]) -> None:
    for cause, lever in flaws:
        raise ManifestError(cause, lever)


def _flaws(options: KubeRayOptions) -> Iterator[Flaw]:
    yield from _names(options)
    yield from _versions(options)
    yield from _amounts(options)
    yield from _variables(options)
    for index, mount in enumerate(options.buckets):
        yield from _mount(f"buckets[{index}]", mount, [each.path for each in options.buckets[:index]])
    yield from _pairs("labels", options.labels, OUR_LABELS)
    yield from _pairs("node_selector", options.node_selector, OUR_SELECTORS)
    for key in options.annotations:
        if not key_is_valid(key) or key.startswith(OUR_ANNOTATIONS):
            yield f"annotations has the key {key!r}.", _own_words(key)
    for index, toleration in enumerate(options.tolerations):
        yield from _toleration(f"tolerations[{index}]", toleration)
    for key in options.pod_template or {}:
        if key not in ("metadata", "spec"):
            yield f"pod_template has {key!r}.", "A pod template has metadata and spec; a container's fields are deeper."


def _names(options: KubeRayOptions) -> Iterator[Flaw]:
    for name in ("namespace", "queue"):
        text = getattr(options, name)
        if text and not DNS_LABEL.fullmatch(text):
            yield f"{name} is {text!r}.", "Use at most 63 small letters, digits and hyphens, no hyphen first or last."
    named = {name: getattr(options, name) for name in ("service_account", "queue_priority", "priority_class")}
    named |= {f"image_pull_secrets[{index}]": name for index, name in enumerate(options.image_pull_secrets)}
    for where, text in named.items():
        if text and not _is_dns_name(text):
            yield f"{where} is {text!r}, which is no name of a Kubernetes object.", "Give the object's own name."
    for name in ("reservation", "reservation_project", "reservation_block", "compute_class"):
        text = getattr(options, name)
        if not LABEL_VALUE.fullmatch(text):
            yield f"{name} is {text!r}, which no node's label can say.", "Give its own name, at most 63 characters."
    groups = [group.name for group in options.cpu_groups]
    for index, group in enumerate(groups):
        if not DNS_LABEL.fullmatch(group) or group in groups[:index]:
            lever = "Give each group a name of its own in small letters, digits and hyphens."
            yield f"cpu_groups[{index}].name is {group!r}.", lever


def _versions(options: KubeRayOptions) -> Iterator[Flaw]:
    version = ray_version(options.ray_version)
    if version is None or version < MIN_RAY:
        yield f"ray_version is {options.ray_version!r}.", "Give the image's Ray version, 2.53.0 or later."
    if options.image and not _IMAGE.fullmatch(options.image):
        yield f"image is {options.image!r}.", "Give registry/name:tag or registry/name@sha256:digest."
    if options.image_pull_policy not in _PULL:
        yield f"image_pull_policy is {options.image_pull_policy!r}.", f"Use one of {', '.join(_PULL[1:])}."


def _amounts(options: KubeRayOptions) -> Iterator[Flaw]:
    for name, resources in (("head", options.head), ("worker", options.worker)):
        for part, amount in _quantities(resources):
            if not _QUANTITY.fullmatch(amount) or not float(re.sub(r"[A-Za-z]+$", "", amount)):
                yield f"{name}.{part} is {amount!r}.", 'Give a Kubernetes quantity above zero, "8" or "32Gi".'
    for index, group in enumerate(options.cpu_groups):
        if group.replicas < 1 or group.cpus < 1:
            yield f"cpu_groups[{index}] has {group.replicas} replicas of {group.cpus} CPUs.", "Give at least 1 of each."
    for name, least, most in (
        ("run_limit_s", 1.0, 7 * 86400.0),
        ("grace_s", 0.0, _GRACE_S),
        ("idle_s", 0.0, 7 * 86400.0),
        ("min_slices", 0, 10_000),
        ("max_slices", 1, 10_000),
    ):
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            yield f"{name} is {value:g}.", f"Give {least:g} to {most:g}."


def _quantities(resources: Resources | None) -> Iterator[tuple[str, str]]:
    if resources is None:
        return
    yield "cpu", resources.cpu
    yield "memory", resources.memory
    if resources.ephemeral_storage:
        yield "ephemeral_storage", resources.ephemeral_storage


def _variables(options: KubeRayOptions) -> Iterator[Flaw]:
    for where, names in (("env", options.env), ("secret_env", options.secret_env)):
        for name in names:
            if not VARIABLE.fullmatch(name):
                yield f"{where} has the name {name!r}.", "Use letters, digits and underscores, no digit first."
            elif name.startswith(OUR_VARIABLES):
                yield f"{where} sets {name}.", "Leave it out: each pod has its own, by what it is."
    for name, place in options.secret_env.items():
        match = _SECRET.fullmatch(place)
        if match is None or not _is_dns_name(match["name"]):
            yield (
                f"secret_env[{name!r}] does not say where the secret is.",
                'Give "secret/key", never the secret itself.',
            )


def _mount(where: str, mount: BucketMount, before: list[str]) -> Iterator[Flaw]:
    if not _BUCKET.fullmatch(mount.bucket):
        yield f"{where}.bucket is {mount.bucket!r}.", "Give the bucket's name alone, without gs:// and folders."
    if not _PATH.fullmatch(mount.path) or "/.." in mount.path or mount.path in (*_TAKEN_PATHS, *before):
        yield f"{where}.path is {mount.path!r}.", 'Give a folder of its own, such as "/data".'
    if not _MOUNT_OPTIONS.fullmatch(mount.options):
        yield f"{where}.options is {mount.options!r}.", 'Separate by commas: "implicit-dirs,uid=1000".'


def _pairs(where: str, pairs: Mapping[str, str], ours: tuple[str, ...]) -> Iterator[Flaw]:
    for key, value in pairs.items():
        if not key_is_valid(key) or key.startswith(ours):
            yield f"{where} has the key {key!r}.", _own_words(key)
        elif not LABEL_VALUE.fullmatch(value):
            lever = "Use at most 63 letters, digits, dots, hyphens and underscores, a letter or digit first and last."
            yield f"{where}[{key!r}] is {value!r}.", lever


def _toleration(where: str, toleration: Mapping[str, Any]) -> Iterator[Flaw]:
    unknown = sorted(set(toleration) - _TOLERATION)
    if unknown:
        yield f"{where} has {', '.join(unknown)}.", f"A toleration has {', '.join(sorted(_TOLERATION))}."
    if toleration.get("key") in (None, "", IMPENDING):
        yield f"{where} bears {IMPENDING}.", "Name the one taint that is meant: such a pod is not ended in time."


def _own_words(key: str) -> str:
    if not key_is_valid(key):
        return "Use letters, digits, dots, hyphens and underscores, with a DNS name and a slash before it or without."
    return "Leave it to the option that is for it: provisioning, reservation, compute_class, queue, elastic, buckets."


def _contradictions(options: KubeRayOptions) -> Iterator[Flaw]:
    yield from _provisioning(options)
    yield from _queue(options)
    yield from _autoscaling(options)
    both = sorted(set(options.env) & set(options.secret_env))
    if both:
        yield f"env and secret_env both set {', '.join(both)}.", "Leave it out of one."


def _provisioning(options: KubeRayOptions) -> Iterator[Flaw]:
    how, limited = options.provisioning, (Provisioning.FLEX_START, Provisioning.QUEUED)
    reserved = [name for name in ("reservation", "reservation_project", "reservation_block") if getattr(options, name)]
    if how is Provisioning.RESERVATION and not options.reservation:
        yield 'provisioning is "reservation" without its name.', "Give reservation= as well."
    if how is not Provisioning.RESERVATION and reserved:
        lever = 'Use provisioning="reservation", or leave it out: GKE takes no pod that asks for both.'
        yield f"{reserved[0]} is set with provisioning {how.value!r}.", lever
    if how in limited and options.run_limit_s is None:
        yield (
            f"provisioning is {how.value!r} without run_limit_s.",
            "Say how long the nodes are to be had: 10 min to 7 d.",
        )
    if how not in limited and options.run_limit_s is not None:
        lever = 'Leave it out, or use provisioning="flex-start" or "queued".'
        yield f"run_limit_s is set with provisioning {how.value!r}, which has none.", lever
    if options.compute_class and how not in (Provisioning.ON_DEMAND, Provisioning.QUEUED):
        lever = f"State {how.value} in the class's priorities: GKE takes no pod that asks for both."
        yield f"compute_class {options.compute_class} is set with provisioning {how.value!r}.", lever


def _queue(options: KubeRayOptions) -> Iterator[Flaw]:
    if options.queue:
        return
    if options.provisioning is Provisioning.QUEUED:
        yield 'provisioning is "queued" without a queue.', "Give queue=: Kueue makes the provisioning request."
    if options.queue_priority:
        yield f"queue_priority is {options.queue_priority!r} without a queue.", "Give queue= as well."
    if options.elastic:
        yield "elastic is set without a queue.", "Give queue= as well: only Kueue reads it."


def _autoscaling(options: KubeRayOptions) -> Iterator[Flaw]:
    stated = [name for name in ("min_slices", "max_slices", "idle_s") if getattr(options, name) is not None]
    if stated and not options.autoscaling:
        yield (
            f"{stated[0]} is set without autoscaling.",
            "Set autoscaling, or give the cluster a fixed number of slices.",
        )
    least, most = options.min_slices, options.max_slices
    if least is not None and most is not None and least > most:
        yield f"min_slices is {least} and max_slices {most}.", "Raise max_slices, or lower min_slices."


def _is_dns_name(text: str) -> bool:
    return len(text) <= _NAME_LIMIT and bool(DNS_NAME.fullmatch(text))
