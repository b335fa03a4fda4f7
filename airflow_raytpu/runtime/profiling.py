"""A trace of a few steps, taken by JAX's own profiler in the loop's process and put into storage.

Ray's ``init_jax_profiler`` is not used: it only opens a port at which somebody may ask for a trace while the job runs,
through a dashboard with profiling switched on and TensorFlow on the host (Ray 2.60). Nobody sits there at step 2,000.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_raytpu.model.policies import Profile
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.runtime import files

FOLDER = "profile"
"""Of the task's storage."""

_UPLOAD_S = 120.0

log = logging.getLogger(__name__)


def folder(request: RayRequest) -> str:
    """Where the trace of *request*'s attempt goes."""
    return f"{request.storage}/{FOLDER}/{request.identity.attempt}"


def found(request: RayRequest, lineage: tuple[str, ...]) -> str:
    """URI of the newest trace that attempts of *lineage* took, empty where there is none or storage will not say."""
    try:
        for attempt in range(request.identity.attempt, 0, -1):
            uri = f"{request.storage}/{FOLDER}/{attempt}"
            if request.identity.with_attempt(attempt).remote_name() in lineage and files.children(uri):
                return uri
    except OSError as error:
        log.warning("Profiles cannot be looked for: %s", error)
    return ""


class Profiler:
    """Traces the steps of one process that follow ``start_step``, once. Whatever goes wrong, the training goes on.

    :param uri: where the trace goes.
    :ivar blocked_s: seconds for which the loop stood still because of it.
    """

    def __init__(self, profile: Profile, uri: str) -> None:
        self._profile, self._uri = profile, uri
        self._began: int | None = None
        self._over = False
        self._folder = ""
        self._upload: threading.Thread | None = None
        self.blocked_s = 0.0

    def after(self, step: int, state: Any) -> None:
        """*step* is done, and *state* is what it led to."""
        if self._over or step < self._profile.start_step:
            return
        if self._began is None:
            self._began = step
            self._try(self._start, state)
        elif step - self._began >= self._profile.steps:
            self._try(self._stop, state)

    def finish(self) -> None:
        """The loop has ended: keep what was traced, and wait for its upload."""
        if self._began is not None and not self._over:
            self._try(self._stop, None)
        if self._upload is not None:
            began = time.monotonic()
            self._upload.join(_UPLOAD_S)
            self.blocked_s += time.monotonic() - began
            if self._upload.is_alive():
                log.warning("The profile could not be uploaded to %s within %.0f s.", self._uri, _UPLOAD_S)

    def abandon(self) -> None:
        """The loop has failed: what was traced so far is dropped."""
        if self._began is not None and not self._over:
            self._over = True
            shutil.rmtree(self._folder, ignore_errors=True)

    def _try(self, work: Callable[[Any], None], state: Any) -> None:
        began = time.monotonic()
        try:
            work(state)
        except Exception as error:  # noqa: BLE001 - a picture of the work must not end it
            self._give_up(error)
        self.blocked_s += time.monotonic() - began

    def _start(self, state: Any) -> None:
        import jax

        # What was handed to the devices before is not meant.
        jax.block_until_ready(state)
        self._folder = tempfile.mkdtemp(prefix="raytpu-profile-")
        jax.profiler.start_trace(self._folder)

    def _stop(self, state: Any) -> None:
        import jax

        self._over = True
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        self._upload = threading.Thread(target=self._put, name="profile", daemon=True)
        self._upload.start()

    def _put(self) -> None:
        try:
            for path in sorted(Path(self._folder).rglob("*")):
                if path.is_file():
                    name = quote(path.relative_to(self._folder).as_posix())
                    files.write_bytes(f"{self._uri}/{name}", path.read_bytes())
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        else:
            log.info("profile of %d steps from step %d on: %s", self._profile.steps, self._began, self._uri)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self, error: Exception) -> None:
        self._over = True
        shutil.rmtree(self._folder, ignore_errors=True)
        log.warning("There is no profile from step %s on: %s: %s", self._began, type(error).__name__, error)
