"""Trouble to order: faults that requests meet, and what was asked of the server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Fault = int | Literal["reset", "drop", "hang", "timeout", "cut", "garbage"]


@dataclass
class Order:
    """One fault, for the next *times* requests that fit; ``None`` for all of them.

    :param status: an HTTP status, or

        - ``reset``: the connection is reset, and nothing was carried out
        - ``drop``: carried out, then reset instead of an answer
        - ``cut``: carried out, and the answer ends in the middle of its body
        - ``hang``: no answer at all, for as long as the client waits
        - ``timeout``: 504 with a ``Status``
        - ``garbage``: HTML in place of JSON, as a load balancer has it
    """

    verb: str
    resource: str
    status: Fault
    times: int | None
    name: str = ""
    retry_after: int | None = None
    skip: int = 0

    def fits(self, verb: str, resource: str, name: str) -> bool:
        return (
            self.verb in {"*", verb}
            and self.resource in {"*", resource}
            and self.name in {"", name}
            and (self.times is None or self.times > 0)
        )


@dataclass(frozen=True)
class Call:
    """One request as the server saw it."""

    verb: str
    resource: str
    namespace: str
    name: str
    token: str
    status: int


@dataclass
class Trouble:
    """
    :ivar calls: every request, in the order in which they were answered (watches: begun).
    :ivar live_watches: how many there are now, by resource.
    """

    orders: list[Order] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    live_watches: Counter[str] = field(default_factory=Counter)

    def meet(self, verb: str, resource: str, name: str) -> Order | None:
        """The first fault that is due for this request."""
        for order in self.orders:
            if not order.fits(verb, resource, name):
                continue
            if order.skip > 0:
                order.skip -= 1
                continue
            if order.times is not None:
                order.times -= 1
            return order
        return None

    def count(self, verb: str = "", resource: str = "", token: str = "", status: int = 0) -> int:
        """How many requests fit all that is given."""
        return sum(
            (not verb or call.verb == verb)
            and (not resource or call.resource == resource)
            and (not token or call.token == token)
            and (not status or call.status == status)
            for call in self.calls
        )
