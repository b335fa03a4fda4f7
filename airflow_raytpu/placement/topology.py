"""``TpuSlice``: the shape an author asks for, checked the moment it is written down."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_raytpu.model.errors import SliceShapeError
from airflow_raytpu.placement import catalogue
from airflow_raytpu.placement.catalogue import Shape

_TEXT = re.compile(
    r"""^\s*(?P<accelerator>[a-z0-9-]+?)
        (?:[\s:,/-]+(?P<topology>\d+(?:x\d+)+)|-(?P<cores>\d+))
        (?:\s*\*\s*(?P<times>\d+)|\s+x\s?(?P<by>\d+))?
        (?:\s*@\s*(?P<machine>[a-z0-9-]+))?\s*$""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """One or more equal TPU slices.

    :param accelerator: ``v4``, ``v5e``, ``v5p``, ``v6e`` or ``tpu7x``, or what people call them (``trillium``).
    :param topology: chips along each side, ``"4x4"`` or ``"2x2x2"``.
    :param num_slices: how many such slices one job spans.
    :param machine_type: GKE machine type; needed only where a topology exists on two (v5e and v6e ``2x4``).
    :raises SliceShapeError: GKE has no such shape, or the machine type must be said.
    """

    accelerator: str
    topology: str
    num_slices: int = 1
    machine_type: str = ""
    _shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        generation = _generation(self.accelerator)
        topology = re.sub(r"[\s]", "", self.topology.lower().replace("×", "x").replace("*", "x"))
        shape = _shape(generation, topology, self.machine_type)
        if self.num_slices < 1:
            raise SliceShapeError(f"num_slices is {self.num_slices}.", "Ask for at least 1 slice.")
        if self.num_slices > 1 and shape.hosts == 1:
            raise SliceShapeError(
                f"{self.num_slices} slices of {generation} {topology}: a job spans several slices only where each has "
                "several hosts (GKE multislice).",
                f"Use one larger slice: {_names(_nearest(generation, shape.chips * self.num_slices))}.",
            )
        for name, value in (
            ("accelerator", generation),
            ("topology", topology),
            ("machine_type", shape.machine_type),
            ("_shape", shape),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> TpuSlice:
        """Read a shape as people write it: ``v6e:4x4``, ``v6e-16``, ``TPU-V6E 4x4 x2``, ``v5e:2x4@ct5lp-hightpu-8t``.

        :raises SliceShapeError: it cannot be read, or there is no such shape.
        """
        match = _TEXT.match(text.lower().replace("×", "x"))
        if match is None:
            raise SliceShapeError(
                f"{text!r} is not a slice.",
                "Write accelerator:topology, for example v6e:4x4, or v6e:4x4*2 for two slices.",
            )
        accelerator, machine = match["accelerator"], match["machine"] or ""
        topology = match["topology"] or _topology_of(accelerator, int(match["cores"]), machine)
        return cls(accelerator, topology, int(match["times"] or match["by"] or 1), machine)

    def __str__(self) -> str:
        """Canonical text; :meth:`parse` reads it back to an equal value."""
        times = f"*{self.num_slices}" if self.num_slices > 1 else ""
        machine = f"@{self.machine_type}" if len(catalogue.find(self.accelerator, self.topology)) > 1 else ""
        return f"{self.accelerator}:{self.topology}{times}{machine}"

    @property
    def shape(self) -> Shape:
        """The catalogue's row."""
        return self._shape

    @property
    def chips(self) -> int:
        """Chips of one slice."""
        return self._shape.chips

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return self._shape.hosts

    @property
    def chips_per_host(self) -> int:
        return self._shape.chips_per_host

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
        return f"{times}{self.accelerator} {self.topology}: {hosts} x {chips}"


def _generation(text: str) -> str:
    name = text.strip().lower().replace("_", "-")
    if name in catalogue.GENERATIONS:
        return name
    short = name.removeprefix("tpu-").removeprefix("tpu")
    short = catalogue.ALIASES.get(short, short)
    if short not in catalogue.GENERATIONS:
        raise SliceShapeError(f"There is no TPU generation {text!r}.", f"Known: {', '.join(catalogue.GENERATIONS)}.")
    return short


def _shape(generation: str, topology: str, machine_type: str) -> Shape:
    rows = catalogue.find(generation, topology)
    if not rows:
        raise SliceShapeError(f"{generation} has no topology {topology}.", _suggest(generation, topology))
    if machine_type:
        for row in rows:
            if row.machine_type == machine_type:
                return row
        raise SliceShapeError(
            f"{generation} {topology} does not exist on {machine_type}.",
            f"It exists on {' and '.join(row.machine_type for row in rows)}.",
        )
    if len(rows) > 1:
        readings = " or ".join(f"{row.hosts} x {row.chips_per_host} chips on {row.machine_type}" for row in rows)
        raise SliceShapeError(f"{generation} {topology} can be read in two ways: {readings}.", "Give machine_type.")
    return rows[0]


def _suggest(generation: str, topology: str) -> str:
    numbers = [int(side) for side in re.findall(r"\d+", topology)]
    chips = 1
    for number in numbers:
        chips *= number
    return f"Nearest: {_names(_nearest(generation, chips))}."


def _nearest(generation: str, chips: int) -> list[Shape]:
    """The largest shape at or below *chips* and the smallest at or above, one row each."""
    rows = sorted((row for row in catalogue.shapes() if row.generation.name == generation), key=lambda row: row.chips)
    below = [row for row in rows if row.chips <= chips][-1:]
    above = [row for row in rows if row.chips > chips][:1]
    return below + above


def _names(rows: list[Shape]) -> str:
    return " and ".join(f"{row.topology} ({row.chips} chips, {row.hosts} hosts)" for row in rows)


def _topology_of(accelerator: str, cores: int, machine_type: str) -> str:
    """The topology that a pod type such as ``v6e-16`` names, where it names just one."""
    generation = _generation(accelerator)
    pod_type = f"{catalogue.GENERATIONS[generation].ray_version}-{cores}"
    rows = [row for row in catalogue.shapes() if row.generation.name == generation and row.pod_type == pod_type]
    topologies = {row.topology for row in rows if machine_type in ("", row.machine_type)}
    if len(topologies) == 1:
        return topologies.pop()
    if topologies:
        raise SliceShapeError(
            f"{accelerator}-{cores} names {len(topologies)} shapes: {', '.join(sorted(topologies))}.",
            "Give the topology.",
        )
    chips = cores // catalogue.GENERATIONS[generation].cores_per_chip
    raise SliceShapeError(f"There is no {accelerator}-{cores}.", f"Nearest: {_names(_nearest(generation, chips))}.")
