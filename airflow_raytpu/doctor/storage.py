"""Whether what Airflow writes for the cluster can be written and read back, with the credentials of this machine."""

from __future__ import annotations

import secrets

from airflow_raytpu.doctor.findings import Found, error, ok
from airflow_raytpu.model.errors import RayTpuError
from airflow_raytpu.storage import objects

CHECK = "storage"
PROBE = ".doctor-check"


def written(root: str) -> Found:
    """Write a small object under *root*, read it back and write it again.

    It stays, of one line: what is stored there is replaced, never removed, so no request needs more rights than this.
    """
    uri, text = f"{root}/{PROBE}", secrets.token_hex(8).encode()
    try:
        for _ in range(2):
            objects.write_bytes(uri, text)
        found = objects.read_bytes(uri)
    except RayTpuError as trouble:
        return error(CHECK, trouble.cause, trouble.lever, *_grant(root))
    if found != text:
        return error(CHECK, f"{uri} holds something else than what was just written.", "See who else writes there.")
    return ok(CHECK, f"{root} can be written and read from here")


def _grant(root: str) -> tuple[str, ...]:
    if not root.startswith("gs://"):
        return ()
    bucket = root.removeprefix("gs://").partition("/")[0]
    command = (
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} \\\n"
        "    --member=serviceAccount:AIRFLOW@PROJECT.iam.gserviceaccount.com \\\n"
        "    --role=roles/storage.objectUser"
    )
    return (command,)
