"""``TpuSlice``: the shape an author asks for, checked the moment it is written down."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import prod

from airflow_raytpu.model.elastic import Elastic
from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape
from airflow_raytpu.placement.nearest import suggest
from airflow_raytpu.placement.parts import check_part

_TEXT = re.compile(
    r"""^\s*(?:(?P<count>\d{1,6})\s?[x*]\s+)?
        (?P<accelerator>[a-z0-9-]+?)
        (?:[\s:,/-]+(?P<topology>\d{1,6}(?:x\d{1,6})+)(?:\s?/\s?(?P<whole>\d{1,6}(?:x\d{1,6})+))?|-(?P<cores>\d{1,6}))
        (?:\s*\*\s*(?P<times>\d{1,6})|\s+x\s?(?P<by>\d{1,6}))?
        (?:\s*@\s*(?:(?P<chips>\d)t?|(?P<machine>[a-z][a-z0-9-]*)))?\s*$""",
    re.VERBOSE | re.ASCII,
)
_BARE = re.compile(r"\d{1,6}(?:x\d{1,6})+", re.ASCII)


class MultisliceError(SliceShapeError):
    """Several slices of a single host; it shares the code of :class:`SliceShapeError`."""


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """One or more equal TPU slices.

    :param accelerator: ``v4``, ``v5e``, ``v5p``, ``v6e`` or ``tpu7x``, or what people call them (``trillium``).
    :param topology: chips along each side, ``"4x4"`` or ``"2x2x2"``.
    :param num_slices: how many such slices one job spans.
    :param machine_type: GKE machine type; needed only where a topology exists on two (v5e and v6e ``2x4``).
    :param chips_per_host: chips of one host, another way to say the machine; the catalogue's figure in any case.
    :param part_of: topology of the slices that it is a part of, ``"4x4"``: a few hosts of a slice that others share.
    :raises SliceShapeError: GKE has no such shape, or the machine must be said, or no slice divides so.
    """

    accelerator: str
    topology: str
    num_slices: int = 1
    machine_type: str = ""
    chips_per_host: int = 0
    part_of: str = ""
    _shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        generation = _generation(self.accelerator)
        topology, part_of = _plain(self.topology), _plain(self.part_of)
        # Only slices of several hosts divide into hosts, and their machines are of one kind.
        chips_per_host = self.chips_per_host or (catalogue.MULTI_HOST_CHIPS if part_of else 0)
        shape = _shape(generation, topology, self.machine_type, chips_per_host)
        if self.num_slices < 1:
            raise SliceShapeError(f"num_slices is {self.num_slices}.", "Ask for at least 1 slice.")
        if part_of:
            check_part(shape, part_of, self.num_slices)
        elif self.num_slices > 1 and shape.hosts == 1:
            raise MultisliceError(
                f"{self.num_slices} slices of {generation} {topology}: a job spans several slices only where each has "
                "several hosts (GKE multislice).",
                f"Use one larger slice: {suggest(generation, shape.chips * self.num_slices)}.",
            )
        for name, value in (
            ("accelerator", generation),
            ("topology", topology),
            ("machine_type", shape.machine_type),
            ("chips_per_host", shape.chips_per_host),
            ("part_of", part_of),
            ("_shape", shape),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> TpuSlice:
        """Read a shape as people write it: ``v6e:4x4``, ``v6e-16``, ``TPU-V6E 4x4 x2``, ``v5e:2x4@8t``.

        After ``@`` comes a machine type, or the chips of a host (``@4``, ``@8t``); after ``/`` the slices that it is a
        part of (``v6e:2x4/4x4``).

        :raises SliceShapeError: it cannot be read, or there is no such shape.
        """
        plain = text.lower().replace("×", "x")
        match = _TEXT.match(plain)
        if match is None:
            raise _unreadable(text, plain.strip())
        accelerator, machine, chips = match["accelerator"], match["machine"] or "", int(match["chips"] or 0)
        times = int(match["times"] or match["by"] or match["count"] or 1)
        if match["count"] and (match["times"] or match["by"]):
            raise SliceShapeError(f"{text!r} says twice how many slices.", "Write v6e:4x4*2 for two slices.")
        topology = match["topology"] or _topology_of(accelerator, int(match["cores"]), machine, chips)
        return cls(accelerator, topology, times, machine, chips, match["whole"] or "")

    def __str__(self) -> str:
        """Canonical text; :meth:`parse` reads it back to an equal value."""
        if self.part_of:
            return f"{self.accelerator}:{self.topology}/{self.part_of}"
        times = f"*{self.num_slices}" if self.num_slices > 1 else ""
        machine = f"@{self.machine_type}" if len(catalogue.find(self.accelerator, self.topology)) > 1 else ""
        return f"{self.accelerator}:{self.topology}{times}{machine}"

    @property
    def shape(self) -> Shape:
        """The catalogue's row."""
        return self._shape

    @property
    def whole(self) -> Shape:
        """The row of the slices themselves, of which this may be a part."""
        rows = catalogue.find(self.accelerator, self.part_of)
        return next((row for row in rows if row.multi_host), self._shape)

    @property
    def chips(self) -> int:
        """Chips of one slice."""
        return self._shape.chips

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return self._shape.hosts

    @property
    def total_chips(self) -> int:
        return self.chips * self.num_slices

    @property
    def total_hosts(self) -> int:
        return self.hosts * self.num_slices

    def describe(self) -> str:
        """``v6e 4x4: 4 hosts x 4 chips``, and how many of them."""
        times = f"{self.num_slices} x " if self.num_slices > 1 else ""
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        chips = "1 chip" if self.chips_per_host == 1 else f"{self.chips_per_host} chips"
        part = f" of a {self.part_of}" if self.part_of else ""
        return f"{times}{self.accelerator} {self.topology}{part}: {hosts} x {chips}"


def widest(own: TpuSlice, elastic: Elastic | None) -> TpuSlice:
    """*own* as many times as an elastic task may have it.

    :raises SliceShapeError: no job spans several of it.
    """
    return own if elastic is None else replace(own, num_slices=elastic.most)


def _plain(topology: str) -> str:
    return re.sub(r"\s", "", topology.lower().replace("×", "x").replace("*", "x"))


def _generation(text: str) -> str:
    short = _short(text)
    if short not in catalogue.GENERATIONS:
        raise SliceShapeError(f"There is no TPU generation {text!r}.", f"Known: {', '.join(catalogue.GENERATIONS)}.")
    return short


def _short(text: str) -> str:
    name = text.strip().lower().replace("_", "-")
    if name in catalogue.GENERATIONS:
        return name
    short = name.removeprefix("tpu-").removeprefix("tpu")
    return catalogue.ALIASES.get(short, short)


def _unreadable(text: str, plain: str) -> SliceShapeError:
    """Why *text* is no slice: half of one, or nothing known."""
    if _BARE.fullmatch(plain):
        owners = [name for name in catalogue.GENERATIONS if catalogue.find(name, plain)]
        if owners:
            ways = ", ".join(f"{name}:{plain}" for name in owners)
            return SliceShapeError(f"{text!r} names no TPU generation.", f"Write one of {ways}.")
    short = _short(plain)
    if short in catalogue.GENERATIONS:
        few = dict.fromkeys(row.topology for row in catalogue.shapes() if row.generation.name == short)
        return SliceShapeError(
            f"{text!r} names no topology.", f"Write for example {', '.join(f'{short}:{each}' for each in [*few][:4])}."
        )
    return SliceShapeError(
        f"{text!r} is not a slice.",
        "Write accelerator:topology, for example v6e:4x4, or v6e:4x4*2 for two slices.",
    )


def _shape(generation: str, topology: str, machine_type: str, chips_per_host: int) -> Shape:
    rows = catalogue.find(generation, topology)
    if not rows:
        raise SliceShapeError(f"{generation} has no topology {topology}.", _instead(generation, topology))
    fitting = [
        row
        for row in rows
        if machine_type in ("", row.machine_type) and (not chips_per_host or chips_per_host == row.chips_per_host)
    ]
    if not fitting:
        machine = machine_type or f"a machine of {chips_per_host} chip{'s' * (chips_per_host > 1)}"
        if machine_type and chips_per_host:
            machine += f" with {chips_per_host} chips a host"
        raise SliceShapeError(
            f"{generation} {topology} does not exist on {machine}.",
            f"It exists on {' and '.join(row.machine_type for row in rows)}.",
        )
    if len(fitting) > 1:
        readings = " or ".join(f"{row.hosts} x {row.chips_per_host} chips on {row.machine_type}" for row in rows)
        either = " or ".join(f"chips_per_host={row.chips_per_host}" for row in rows)
        raise SliceShapeError(
            f"{generation} {topology} can be read in two ways: {readings}.",
            f"Give machine_type, or {either}; in text {generation}:{topology}@{rows[0].machine_type}.",
        )
    return fitting[0]


def _instead(generation: str, topology: str) -> str:
    sides = tuple(int(side) for side in re.findall(r"\d{1,6}", topology, re.ASCII)[:3])
    return f"Nearest: {suggest(generation, prod(sides), sides)}."


def _topology_of(accelerator: str, cores: int, machine_type: str, chips_per_host: int) -> str:
    """The topology that a pod type such as ``v6e-16`` names, where it names just one."""
    generation = _generation(accelerator)
    pod_type = f"{catalogue.GENERATIONS[generation].ray_version}-{cores}"
    rows = [row for row in catalogue.shapes() if row.generation.name == generation and row.pod_type == pod_type]
    topologies = {
        row.topology
        for row in rows
        if machine_type in ("", row.machine_type) and (not chips_per_host or chips_per_host == row.chips_per_host)
    }
    if len(topologies) == 1:
        return topologies.pop()
    if topologies:
        raise SliceShapeError(
            f"{accelerator}-{cores} names {len(topologies)} shapes: {', '.join(sorted(topologies))}.",
            "Give the topology.",
        )
    chips = cores // catalogue.GENERATIONS[generation].cores_per_chip
    raise SliceShapeError(f"There is no {accelerator}-{cores}.", f"Nearest: {suggest(generation, chips)}.")
