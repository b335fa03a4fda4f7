"""News from workers to the driver, through Ray's own key-value store: no extra actor, no file, no barrier."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Self

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

_NAMESPACE = b"airflow_raytpu"
_INTERVAL_S = 0.3


def publish(request: str, topic: str, news: dict[str, Any]) -> None:
    """Leave *news* where the driver of *request* looks; the newest of a topic replaces the one before."""
    _internal_kv_put(f"{request}/{topic}", json.dumps(news), namespace=_NAMESPACE)


def collect(request: str, topic: str) -> dict[str, Any] | None:
    """The newest news of a topic, ``None`` where there is none."""
    found = _internal_kv_get(f"{request}/{topic}", namespace=_NAMESPACE)
    return json.loads(found) if found else None


def drop(request: str, topic: str) -> None:
    """Forget the news of a topic."""
    _internal_kv_del(f"{request}/{topic}", namespace=_NAMESPACE)


def clear(request: str) -> None:
    """Forget all news of *request*."""
    _internal_kv_del(f"{request}/", del_by_prefix=True, namespace=_NAMESPACE)


class Pump:
    """Calls *turn* a few times a second beside the driver's main thread, until left; a last time on leaving.

    An error in *turn* ends the pump and is raised on leaving.
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        if kind is None:
            if self._error is not None:
                raise self._error
            self._turn()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
                self._error = error
                return
