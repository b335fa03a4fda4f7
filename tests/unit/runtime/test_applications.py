"""What Serve's words mean, and that a PUT leaves the neighbours alone."""

import pytest

from airflow_raytpu.runtime.applications import AppView, Health, merged, views


def details(status="RUNNING", deployment="HEALTHY", replica="RUNNING", **app):
    return {
        "applications": {
            "digits": {
                "status": status,
                "message": "",
                "deployed_app_config": {"name": "digits", "args": {"version": "v1"}},
                "deployments": {
                    "Digits": {"status": deployment, "target_num_replicas": 2, "replicas": [{"state": replica}] * 2}
                },
                **app,
            }
        }
    }


@pytest.mark.parametrize(
    ("status", "deployment", "health"),
    [
        ("RUNNING", "HEALTHY", Health.HEALTHY),
        ("RUNNING", "UPDATING", Health.WAITING),
        ("RUNNING", "UNHEALTHY", Health.WAITING),
        ("DEPLOYING", "HEALTHY", Health.WAITING),
        ("NOT_STARTED", "UPDATING", Health.WAITING),
        ("UNHEALTHY", "UNHEALTHY", Health.WAITING),
        ("DELETING", "HEALTHY", Health.WAITING),
        ("DEPLOY_FAILED", "DEPLOY_FAILED", Health.FAILED),
        ("A_WORD_FROM_THE_FUTURE", "HEALTHY", Health.WAITING),
        ("RUNNING", "A_WORD_FROM_THE_FUTURE", Health.WAITING),
    ],
)
def test_only_a_running_application_of_healthy_deployments_is_healthy(status, deployment, health):
    assert views(details(status, deployment))["digits"].health is health


def test_a_view_counts_replicas_and_knows_its_version():
    view = views(details())["digits"]
    assert (view.running, view.wanted, view.version) == (2, 2, "v1")
    assert views(details(replica="STARTING"))["digits"].running == 0


def test_serve_that_never_started_has_no_applications():
    assert views({}) == {}
    assert views({"applications": {}}) == {}


def test_a_put_keeps_every_neighbour_to_the_letter():
    other = {"name": "other", "route_prefix": "/o", "runtime_env": {"env_vars": {"A": "1e-5"}}, "unknown": [1]}
    seen = {
        "other": AppView("other", Health.WAITING, other),
        "python": AppView("python", Health.HEALTHY),
        "digits": AppView("digits", Health.HEALTHY, {"name": "digits", "args": {"version": "v1"}}),
    }
    new = {"name": "digits", "args": {"version": "v2"}}
    body = merged(seen, "digits", new, "http://127.0.0.1:18000")
    assert body["applications"] == [other, new]
    assert body["http_options"] == {"host": "127.0.0.1", "port": 18000}
    assert merged(seen, "digits", None, "http://127.0.0.1:18000")["applications"] == [other]
