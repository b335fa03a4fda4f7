"""What comes back: the result file that the runtime writes last, and that alone proves success."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_raytpu.model import reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt ended, in the runtime's own words.

    :param request: the remote name of the attempt, so that one attempt's file never speaks for another's.
    :param value: what the task returns to Airflow (JSON), where it succeeded.
    :param code: an error code of :mod:`airflow_raytpu.model.errors`, empty where it succeeded.
    :param traceback: the author's own frames, where their code raised.
    """

    request: str
    value: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    cause: str = ""
    lever: str = ""
    traceback: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.code

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Unknown keys, a newer writer's, are left aside.

        :raises RequestError: it is no outcome.
        """
        return reading.newer("result", cls, data)
