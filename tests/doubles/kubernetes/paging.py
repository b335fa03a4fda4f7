"""Lists in pages: a continue token goes on from the same moment, until that is compacted away."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.doubles.kubernetes.kinds import Kind
from tests.doubles.kubernetes.refusal import bad_request, expired
from tests.doubles.kubernetes.store import Item, Store
from tests.doubles.kubernetes.watching import version_number

_NEWEST = -1


def page(store: Store, kind: Kind, query: Mapping[str, str], wanted: Callable[[Item], bool]) -> dict[str, Any]:
    """``metadata`` and ``items`` of the list that *query* asks for.

    :raises Refusal: 410 with a fresh token where the token's moment is compacted away.
    """
    limit = int(query.get("limit") or 0)
    stated, token = query.get("resourceVersion", ""), query.get("continue", "")
    if token:
        version, start = _read(token)
        found = store.snapshot(kind, None if version == _NEWEST else version)
        if found is None:
            fresh = _token(_NEWEST, start)
            message = (
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter, or use the continue token in this response"
            )
            raise expired(message, {"continue": fresh})
    else:
        if stated not in {"", "0"}:
            store.check_not_ahead(version_number(stated))
        start, found = ("", ""), store.snapshot(kind)
        assert found is not None
    version, everything = found
    rest = [item for item in everything if wanted(item) and _key(item) > start]
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if limit and len(rest) > limit:
        meta["continue"] = _token(version, _key(rest[limit - 1]))
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            meta["remainingItemCount"] = len(rest) - limit
        rest = rest[:limit]
    return {"metadata": meta, "items": rest}


def _key(item: Item) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _token(version: int, start: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *start]).encode()).decode()


def _read(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, binascii.Error) as error:
        raise bad_request("continue key is not valid") from error
    return version, (namespace, name)
