"""Links on a task's page in Airflow's UI. The values are XComs, pushed as soon as they are known.

Airflow asks each link once more when a process of the task ends, and keeps that answer: the operator remembers what it
pushed in ``known_links``, by XCom key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperatorLink


class _KnownLink(BaseOperatorLink):
    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        known: Mapping[str, str] = operator.known_links
        return known.get(self.xcom_key, "")


class RayDashboardLink(_KnownLink):
    name = "Ray dashboard"


class CheckpointLink(_KnownLink):
    name = "Checkpoint"


class ProfileLink(_KnownLink):
    name = "Profile"


class EndpointLink(_KnownLink):
    name = "Endpoint"


DASHBOARD, CHECKPOINT, PROFILE, ENDPOINT = RayDashboardLink(), CheckpointLink(), ProfileLink(), EndpointLink()


def of_cluster(facts: Mapping[str, Any]) -> dict[str, str]:
    """XComs of what a ready cluster offers."""
    return _known({DASHBOARD.xcom_key: facts.get("dashboard")})


def of_result(value: Mapping[str, Any]) -> dict[str, str]:
    """XComs of what a finished request returned."""
    return _known(
        {
            CHECKPOINT.xcom_key: _console(value.get("checkpoint")),
            PROFILE.xcom_key: _console(value.get("profile")),
            ENDPOINT.xcom_key: value.get("endpoint"),
        }
    )


def _known(links: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in links.items() if value}


def _console(uri: str | None) -> str | None:
    if uri and uri.startswith("gs://"):
        return "https://console.cloud.google.com/storage/browser/" + uri.removeprefix("gs://")
    return uri
