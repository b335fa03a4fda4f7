"""The command itself."""

from __future__ import annotations

import sys
import time

from airflow_raytpu.slices_view import reading, screen


def run(conn_id: str | None, cluster: str | None, output: str) -> None:
    """Print the picture to standard output.

    :raises RayTpuError: the place cannot be asked.
    """
    slices = reading.read(conn_id, cluster)
    if not slices and output == "text":
        where = f"connection {conn_id}" if conn_id else "this machine, for this user"
        print(f"There is no cluster{f' {cluster}' if cluster else ''} on {where}.")
        return
    screen.show(slices, output, time.time(), sys.stdout)
