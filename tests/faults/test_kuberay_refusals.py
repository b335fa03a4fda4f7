"""What a request cannot have on Kubernetes: it ends by the limit that fits, says why, and leaves nothing.

From the watch down to the API server; hours pass in moments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_raytpu.doctor.needs import NEEDED, Need
from airflow_raytpu.model.request import Kind
from airflow_raytpu.model.verdict import Phase, Verdict
from tests.doubles.kubernetes.kuberay import events
from tests.faults.kuberay_stage import DASHBOARD_PORT, QUIET_S, SLICE_WAIT_S, Stage, staged


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with staged(tmp_path, monkeypatch) as made:
        yield made


@dataclass(frozen=True)
class Lack:
    """
    :param deed: what is wrong, done *at* seconds after the request.
    :param until: how far all goes well besides.
    :param within: the first and the last second in which it may end.
    :param says: words of the cause.
    """

    deed: Callable[[Stage], Any]
    code: str
    within: tuple[float, float]
    says: tuple[str, ...]
    at: float = -1
    until: str = "waiting"
    lever: str = "."


AT_ONCE, MINUTES, IAM = (0, 100), (300, 400), (600, 720)
WAITED = (SLICE_WAIT_S, SLICE_WAIT_S + 20)


def pods_wait(reason: str, message: str) -> Callable[[Stage], None]:
    def deed(stage: Stage) -> None:
        for pod in stage.controller.pods.workers(stage.controller.cluster()):
            stage.controller.pods.waiting(pod, reason, message)

    return deed


async def no_account(stage: Stage) -> None:
    await stage.controller.step("initializing")
    words = 'pods "h" is forbidden: error looking up service account default/ray: serviceaccount "ray" not found'
    events.note(stage.k, stage.controller.cluster(), "FailedToCreateHeadPod", words)


def quota(**hard: str) -> Callable[[Stage], None]:
    return lambda stage: stage.k.put("resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": hard}})


def no_queue(stage: Stage) -> None:
    stage.controller.is_queued()
    workload = stage.controller.queueing.workload(stage.controller.top())
    assert workload is not None
    words = "LocalQueue team doesn't exist"
    stage.controller.queueing._write(workload, QuotaReserved=("False", "Inadmissible", words))


def no_operator(stage: Stage) -> None:
    stage.operator = False


PULL = 'Failed to pull image "registry.example/ray:1"'
LACKS = {
    "crd": Lack(lambda s: s.k.uninstall("rayjobs"), "RT211", AT_ONCE, ("rayjobs.ray.io",), lever="KubeRay"),
    "all crds": Lack(
        lambda s: [s.k.uninstall(f"ray{each}") for each in ("jobs", "clusters", "services")],
        "RT211",
        AT_ONCE,
        ("rayjobs.ray.io",),
        lever="KubeRay",
    ),
    "quota of objects": Lack(
        quota(**{"count/rayjobs.ray.io": "0"}), "RT210", AT_ONCE, ("team", "requested: count/rayjobs.ray.io=1", "0")
    ),
    "quota of pods": Lack(quota(pods="2"), "RT203", WAITED, ("exceeded quota", "pods=2")),
    "quota of clusters": Lack(quota(**{"count/rayclusters.ray.io": "0"}), "RT203", WAITED, ("exceeded quota",)),
    "image": Lack(
        lambda s: s.controller.image_pull_fails(f"{PULL}: not found"), "RT208", MINUTES, ("not found",), at=35
    ),
    "image's name": Lack(pods_wait("InvalidImageName", 'couldn\'t parse image "Ray:1"'), "RT106", AT_ONCE, (), at=35),
    "pull secret": Lack(
        lambda s: s.controller.image_pull_fails(f"{PULL}: 401 unauthorized"), "RT210", IAM, ("401",), at=35,
        lever="image_pull_secrets",
    ),
    "registry that is down": Lack(
        lambda s: s.controller.image_pull_fails(f"{PULL}: 503 service unavailable"), "RT203", WAITED, ("503",), at=35
    ),
    "secret of the environment": Lack(
        pods_wait("CreateContainerConfigError", 'secret "wandb" not found'), "RT208", MINUTES, ("wandb",), at=35
    ),
    "service account": Lack(no_account, "RT211", MINUTES, ('serviceaccount "ray"',), at=15, until="created"),
    "queue": Lack(no_queue, "RT211", MINUTES, ("LocalQueue team",), at=5, until="created"),
    "place in the queue": Lack(
        lambda s: s.controller.is_queued(), "RT203", WAITED, ("queue team", "insufficient unused quota"), at=5,
        until="created",
    ),
    "node": Lack(lambda s: s.controller.unschedulable(), "RT203", WAITED, ("google.com/tpu", "NotTriggerScaleUp"),
                 at=15, until="taken"),
    "webhook": Lack(
        lambda s: s.controller.webhook_denies("Number of workers in worker group not equal to specified topology: 3"),
        "RT106", AT_ONCE, ("topology: 3",),
    ),
    "valid cluster": Lack(
        lambda s: s.controller.clusters.invalid(s.controller.cluster(), "no container"), "RT106", AT_ONCE,
        ("no container",), at=15, until="taken",
    ),
    "valid job": Lack(
        lambda s: s.controller.jobs.invalid(s.controller.top(), "no such mode"), "RT106", AT_ONCE, ("no such mode",),
        at=5, until="created",
    ),
    "operator": Lack(no_operator, "RT203", WAITED, ("no word from the KubeRay operator",)),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKS)
async def test_without_it_the_request_ends_in_time_and_says_why(stage: Stage, name: str) -> None:
    lack = LACKS[name]
    if lack.at < 0:
        lack.deed(stage)
    else:
        stage.at(lack.at, lambda: lack.deed(stage))
    if "queue" in name:
        stage.with_options(queue="team")
    if lack.until != "created":
        stage.story(lack.until)
    verdict = await stage.watch(stage.open())
    assert verdict.code == lack.code, verdict
    assert verdict.phase in {Phase.FAILED, Phase.LOST}
    assert all(words in verdict.message for words in lack.says), verdict.message
    assert any(letter.isdigit() for letter in verdict.message) or lack.within == AT_ONCE
    assert lack.lever.strip(".") in verdict.lever
    assert verdict.lever
    assert lack.within[0] <= stage.elapsed <= lack.within[1]
    assert stage.longest_silence() <= QUIET_S
    assert len(stage.uids) <= 1
    stage.operator = True
    await stage.nothing_is_left()


async def test_without_its_namespace_it_ends_at_once(stage: Stage) -> None:
    stage.with_options(namespace="nowhere")
    verdict = await stage.watch(stage.open(namespace="nowhere"))
    assert verdict.code == "RT211"
    assert "There is no namespace nowhere" in verdict.message
    assert "kubectl create namespace" in verdict.lever


# Rights.

NEEDS_OF_A_JOB = {
    "create rayjobs.ray.io",
    "get rayjobs.ray.io",
    "list pods",
}
"""Without one of these nothing can be done or seen; without the others it works, with less comfort."""
TOLD = {f"watch {each}" for each in ("rayjobs.ray.io", "rayclusters.ray.io", "pods", "events")}
TOLD |= {f"list {each}" for each in ("rayjobs.ray.io", "rayclusters.ray.io", "events")}


def account(stage: Stage, *without: Need) -> str:
    rules = [
        {
            "apiGroups": [need.resource.group],
            "resources": [need.resource.plural + (f"/{need.subresource}" if need.subresource else "")],
            "verbs": [need.verb],
        }
        for need in NEEDED
        if need not in without
    ]
    return stage.k.account("airflow", rules)


@pytest.mark.parametrize("need", NEEDED, ids=str)
async def test_a_right_that_is_lacking_is_named(stage: Stage, need: Need) -> None:
    stage.story()
    verdict = await stage.watch(stage.open(account(stage, need)))
    if str(need) in NEEDS_OF_A_JOB:
        assert verdict.code == "RT210"
        assert f"may not {need.verb} {need.resource.full}" in verdict.message
        assert f'verbs ["{need.verb}"]' in verdict.lever
        assert stage.elapsed <= 400
    else:
        assert verdict.phase is Phase.SUCCEEDED, verdict
    said = "\n".join(stage.lines.texts("info", "warning"))
    if str(need) in TOLD:
        assert f"may not {need.verb} {need.resource.full}" in said
    if str(need) == "delete rayjobs.ray.io":
        assert "may not delete rayjobs.ray.io" in said
        assert "is left to its time to live" in said
    elif str(need) != "get rayjobs.ray.io":
        await stage.nothing_is_left()
    assert len(stage.uids) <= 1
    assert stage.longest_silence() <= QUIET_S


async def test_with_no_more_than_its_rights_it_works_and_misses_none(stage: Stage) -> None:
    stage.with_options(queue="team")
    stage.story()
    verdict = await stage.watch(stage.open(account(stage)))
    assert verdict.phase is Phase.SUCCEEDED
    assert not stage.k.count(status=403)
    await stage.nothing_is_left()


@pytest.mark.parametrize("gone_s", [100, 1000])
async def test_rights_that_are_put_on_anew_end_nothing_that_runs(stage: Stage, gone_s: float) -> None:
    backend = stage.open(account(stage))
    (binding,) = stage.k.items("rolebindings")
    again = {key: binding[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": "airflow"}}
    stage.story("running")
    stage.at(100, lambda: stage.k.remove("rolebindings", "airflow"))
    stage.at(100, stage.k.cut_watches)
    stage.at(100 + gone_s, lambda: stage.k.put("rolebindings", again))
    stage.at(100 + gone_s + 10, stage.succeeds)
    verdict = await stage.watch(backend)
    if gone_s < 300:
        assert verdict.phase is Phase.SUCCEEDED
    else:
        assert verdict.code == "RT210"
        assert stage.elapsed <= 600
    assert stage.longest_silence() <= QUIET_S


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("get secrets", "may not get secrets"),
        ("create services/proxy", "is not allowed"),
        ("get services/proxy", "is not allowed"),
        ("get rayclusters.ray.io", "may not get rayclusters"),
    ],
)
async def test_a_job_of_a_shared_cluster_names_the_right_that_is_lacking(
    stage: Stage, tmp_path: Path, lacking: str, says: str
) -> None:
    cluster = stage.asks(tmp_path, Kind.CLUSTER, "cluster")
    admin = stage.open()
    await admin.ensure(cluster)
    await stage.controller.step("ready")
    stage.controller.clusters.secret(stage.controller.cluster(), stage.ray.token)
    stage.k.serve(f"{cluster.name}-head-svc", {DASHBOARD_PORT: stage.ray.url})
    job = replace(stage.request, cluster=cluster.name, slice="", options={})
    without = [need for need in NEEDED if str(need) == lacking]
    verdict: Verdict = await stage.watch(stage.open(account(stage, *without)), job)
    assert verdict.code == "RT210", verdict
    assert says in verdict.message
    assert verdict.lever
    assert stage.elapsed <= 400
    assert stage.k.find("rayclusters", cluster.name)


# Kueue.


async def test_without_kueue_nothing_of_it_is_asked_for(stage: Stage) -> None:
    stage.k.uninstall("workloads")
    stage.with_options(queue="team")
    stage.story()
    assert (await stage.watch(stage.open())).phase is Phase.SUCCEEDED
    assert not stage.k.count(resource="workloads")


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_queue_that_cannot_be_seen_is_said(stage: Stage, verb: str) -> None:
    stage.with_options(queue="team")
    stage.at(5, stage.controller.is_queued)
    without = [need for need in NEEDED if str(need) == f"{verb} workloads.kueue.x-k8s.io"]
    verdict = await stage.watch(stage.open(account(stage, *without)))
    assert verdict.code == "RT203"
    assert f"may not {verb} workloads.kueue.x-k8s.io" in verdict.message
    await stage.nothing_is_left()
