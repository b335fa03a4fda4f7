"""Everything that can be said about a request before a TPU is asked for.

``docs/preflight.md`` has the cause, the lever and the source of every code. Pure: what is seen only on disk, in a
cluster or on a TPU is no rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.placement import elastic_rules, request_rules, slice_rules
from airflow_raytpu.placement.findings import Finding, Level, note, raised
from airflow_raytpu.placement.intent import Intent
from airflow_raytpu.placement.topology import MultisliceError, TpuSlice, widest

CODES = tuple(f"RT{number}" for number in range(110, 139))
"""Every code of a finding."""


def preflight(intent: Intent) -> list[Finding]:
    """What is wrong or worth knowing about *intent*: errors first, then warnings, then notes."""
    found: list[Finding] = []
    stated, cluster = _read(intent.slice, found), _read(intent.cluster_slice, found)
    found += request_rules.check(intent)
    found += elastic_rules.check(intent, stated)
    own = stated or cluster
    if own is not None:
        own = _widest(own, intent, found)
    if own is not None:
        found += slice_rules.check(intent, own, cluster)
    elif "slice" in intent.open:
        found.append(
            note("RT132", "The slice is known only when the task runs.", "What depends on it is checked then.")
        )
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def refuse(findings: Iterable[Finding]) -> None:
    """:raises RequestError: the first error among *findings*, in its own class."""
    for finding in findings:
        if finding.level is Level.ERROR:
            raise finding.error()


def _read(text: str | None, found: list[Finding]) -> TpuSlice | None:
    if text is None:
        return None
    return _shape(lambda: TpuSlice.parse(text), found)


def _widest(own: TpuSlice, intent: Intent, found: list[Finding]) -> TpuSlice:
    return _shape(lambda: widest(own, elastic_rules.of(intent)), found) or own


def _shape(make: Callable[[], TpuSlice], found: list[Finding]) -> TpuSlice | None:
    try:
        return make()
    except MultisliceError as error:
        found.append(raised("RT111", error))
    except SliceShapeError as error:
        found.append(raised("RT110", error))
    return None
