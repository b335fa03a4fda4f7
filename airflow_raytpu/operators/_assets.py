"""What a task has made, told to the DAGs that are scheduled on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset


def announce(outlets: Iterable[Any], context: Any, made: Mapping[str, Any]) -> None:
    """Put *made* (JSON) into the event of each asset among *outlets*, over nothing that is there already.

    A DAG with ``schedule=[asset]`` reads it from its ``triggering_asset_events``.
    """
    for outlet in outlets:
        if isinstance(outlet, Asset):
            event = context["outlet_events"][outlet]
            event.extra = {**made, **event.extra}
