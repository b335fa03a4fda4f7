"""Code on its way to the cluster: one zip, named by its content, with the runtime and the author's files.

So the Ray image needs neither Airflow nor this package, and the same code is stored once.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

from airflow_raytpu import __version__
from airflow_raytpu.model.errors import CodeError
from airflow_raytpu.storage import objects
from airflow_raytpu.storage.code import SIZE_LIMIT, Code, find_code

__all__ = ["Code", "find_code", "stage"]

_PACKAGE = Path(__file__).parent.parent
_RUNTIME = ("__init__.py", "model", "placement", "runtime")
_MARK = "RAYTPU"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def stage(codes: Iterable[Code], root_uri: str) -> str:
    """Put the runtime and *codes* in storage.

    :returns: ``{root_uri}/code/<sha256>.zip``. An object that is there and whole is left alone.
    :raises CodeError: too large, or two of *codes* hold different files of one name.
    """
    files = _runtime()
    for code in codes:
        for name, data in code.files().items():
            if files.setdefault(name, data) != data:
                raise CodeError(f"Two pieces of code both bring a file {name}.", "Give the modules different names.")
    total = sum(map(len, files.values()))
    if total > SIZE_LIMIT:
        raise CodeError(
            f"The code takes {total / 1e6:.1f} MB, and {SIZE_LIMIT / 1e6:.0f} MB can be shipped.",
            "Move its data to storage and pass the URI.",
        )
    data = _zip(files)
    uri = f"{root_uri}/code/{hashlib.sha256(data).hexdigest()}.zip"
    # Another size under a content's name can only be a write that was cut short.
    if objects.size(uri) != len(data):
        objects.write_bytes(uri, data)
    return uri


def _runtime() -> dict[str, bytes]:
    code = Code("airflow_raytpu", tuple((_PACKAGE.parent, f"{_PACKAGE.name}/{name}") for name in _RUNTIME))
    # Ray strips the top folder of a zip that has just one entry at the top (Ray 2.60), so there are always two.
    return {**code.files(), _MARK: f"airflow_raytpu {__version__}\n".encode()}


def _zip(files: dict[str, bytes]) -> bytes:
    """The same files give the same bytes: sorted, with one fixed time and mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name])
    return buffer.getvalue()
