"""Every error this package raises on purpose.

    RayTpuError
    ├── RequestError                RT1xx  what was asked for cannot work; nothing was started
    │   ├── SliceShapeError         RT101  no such accelerator, topology or machine
    │   ├── CodeError               RT102  the author's code cannot be found or shipped
    │   ├── PathError               RT103  an input is missing or a place cannot be written
    │   ├── BatchSizeError          RT104  the batch does not divide over the slice
    │   ├── DeadlineError           RT105  limits that contradict one another
    │   └── ManifestError           RT106  the Kubernetes objects cannot be made as asked
    ├── PlaceError                  RT2xx  where it runs let us down; the author's code is not to blame
    │   ├── BackendUnreachable      RT201  no answer; worth asking again
    │   ├── ForeignObjectError      RT202  the name is taken by somebody else's object
    │   ├── NoSliceError            RT203  no whole slice in time
    │   ├── LostError               RT204  what was running is gone
    │   ├── StartTimeout            RT205  a slice was there, yet no first step or row
    │   ├── StallTimeout            RT206  progress stopped
    │   ├── TotalTimeout            RT207  the whole took too long
    │   ├── ClusterError            RT208  the cluster could not be brought up
    │   ├── BrokenSliceError        RT209  a slice is not what its labels say
    │   ├── ForbiddenError          RT210  Kubernetes does not let us
    │   └── NotInstalledError       RT211  the cluster lacks a namespace, a CRD or an operator
    └── WorkError                   RT3xx  the work ran and went wrong
        ├── UserCodeError           RT301  the author's code raised
        ├── NoResultError           RT302  the job ended without saying how
        ├── RowCountError           RT303  rows out differ from rows in
        ├── RolloutError            RT304  the new version never became healthy
        ├── CheckpointError         RT305  a checkpoint could not be saved, or is of another model
        └── DivergedError           RT306  the loss is no number any more

A message gives the cause, the number and the lever; ``code`` names it for the documentation.
"""

from __future__ import annotations

from typing import ClassVar


class RayTpuError(Exception):
    """Base of all errors of this package.

    :param cause: one sentence that says what happened, with the number that matters.
    :param lever: what the reader can do about it.
    :param traceback: the author's own frames, where their code raised; the last thing a reader sees.
    """

    code: ClassVar[str] = "RT000"

    def __init__(self, cause: str, lever: str = "", traceback: str = "") -> None:
        super().__init__(cause, lever, traceback)
        self.cause = cause
        self.lever = lever
        self.traceback = traceback

    def __str__(self) -> str:
        lines = [self.cause.rstrip()]
        if self.lever:
            lines.append("  " + self.lever)
        lines[-1] += f"  [{self.code}]"
        if self.traceback:
            lines.append(self.traceback.rstrip())
        return "\n".join(lines)


class RequestError(RayTpuError):
    code = "RT100"


class SliceShapeError(RequestError):
    code = "RT101"


class CodeError(RequestError):
    code = "RT102"


class PathError(RequestError):
    code = "RT103"


class BatchSizeError(RequestError):
    code = "RT104"


class DeadlineError(RequestError):
    code = "RT105"


class ManifestError(RequestError):
    code = "RT106"


class PlaceError(RayTpuError):
    code = "RT200"


class BackendUnreachable(PlaceError):
    code = "RT201"


class ForeignObjectError(PlaceError):
    code = "RT202"


class NoSliceError(PlaceError):
    code = "RT203"


class LostError(PlaceError):
    code = "RT204"


class StartTimeout(PlaceError):
    code = "RT205"


class StallTimeout(PlaceError):
    code = "RT206"


class TotalTimeout(PlaceError):
    code = "RT207"


class ClusterError(PlaceError):
    code = "RT208"


class BrokenSliceError(PlaceError):
    code = "RT209"


class ForbiddenError(PlaceError):
    code = "RT210"


class NotInstalledError(PlaceError):
    code = "RT211"


class WorkError(RayTpuError):
    code = "RT300"


class UserCodeError(WorkError):
    code = "RT301"


class NoResultError(WorkError):
    code = "RT302"


class RowCountError(WorkError):
    code = "RT303"


class RolloutError(WorkError):
    code = "RT304"


class CheckpointError(WorkError):
    code = "RT305"


class DivergedError(WorkError):
    """:ivar step: where the loss was no number first."""

    code = "RT306"
    step: int = 0

    @classmethod
    def at(cls, step: int, cause: str, lever: str) -> DivergedError:
        """Of *step*."""
        error = cls(cause, lever)
        error.step = step
        return error


def _tree(root: type[RayTpuError]) -> list[type[RayTpuError]]:
    # Other rooms' private subclasses share a code of this tree and stand for it, not the other way round.
    children = [child for child in root.__subclasses__() if child.__module__ == __name__]
    return [root, *(leaf for child in children for leaf in _tree(child))]


def from_code(code: str, cause: str, lever: str = "", traceback: str = "") -> RayTpuError:
    """The error that *code* stands for; an unknown code (a newer writer's) gives the base class."""
    kinds = {kind.code: kind for kind in _tree(RayTpuError)}
    return kinds.get(code, RayTpuError)(cause, lever, traceback)
