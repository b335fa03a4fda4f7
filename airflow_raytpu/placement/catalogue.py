"""Every TPU slice shape that GKE offers: accelerator x machine type x topology.

Facts, not arithmetic: v5e and v6e ``2x4`` is one host of eight chips or two of four, by machine type, so hosts are
never derived from the topology alone. Read by :mod:`airflow_raytpu.placement.topology`.

Each row names its sources (:attr:`Shape.sources`). The rule of the GKE concept page: above 64 chips each dimension is a
multiple of 4, in ascending order. Read in 2026-11.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field
from math import prod


class Tier(enum.Enum):
    """How well a shape is known: named in a Google document, following GKE's rule, or only made by Google's tools."""

    DOCUMENTED = "documented"
    RULE = "rule"
    TOOLING_ONLY = "tooling-only"


_CLOUD = "https://docs.cloud.google.com"
_CONCEPT = f"{_CLOUD}/kubernetes-engine/docs/concepts/tpus"
_MACHINES = "GoogleCloudPlatform/cluster-autoscaler@7d25050 pkg/cloudprovider/gke/machinetypes"
_TOOLS = ("AI-Hypercomputer/xpk@367c8382 src/xpk/core/system_characteristics.py",)


@dataclass(frozen=True, slots=True)
class Generation:
    """One TPU generation, in the words of GKE and of Ray 2.60.

    :param machines: machine type by chips per host.
    :param single_host: topology of a whole single host, by chips per host.
    :param cores_per_chip: what Ray multiplies chips by in a pod type (``v4-8`` is four chips).
    :param documents: where Google states its shapes.
    """

    name: str
    gke_accelerator: str
    ray_type: str
    ray_version: str
    cores_per_chip: int
    machines: dict[int, str] = field(hash=False)
    single_host: dict[int, str] = field(hash=False)
    documents: tuple[str, ...]


GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation(
            "v4",
            "tpu-v4-podslice",
            "TPU-V4",
            "v4",
            2,
            {4: "ct4p-hightpu-4t"},
            {4: "2x2x1"},
            (f"{_CLOUD}/tpu/docs/v4", _CONCEPT),
        ),
        Generation(
            "v5e",
            "tpu-v5-lite-podslice",
            "TPU-V5LITEPOD",
            "v5litepod",
            1,
            {1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"},
            {1: "1x1", 4: "2x2", 8: "2x4"},
            (f"{_CLOUD}/tpu/docs/v5e",),
        ),
        Generation(
            "v5p",
            "tpu-v5p-slice",
            "TPU-V5P",
            "v5p",
            2,
            {4: "ct5p-hightpu-4t"},
            {4: "2x2x1"},
            (f"{_CLOUD}/tpu/docs/v5p", _CONCEPT),
        ),
        Generation(
            "v6e",
            "tpu-v6e-slice",
            "TPU-V6E",
            "v6e",
            1,
            {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"},
            {1: "1x1", 4: "2x2", 8: "2x4"},
            (f"{_CLOUD}/tpu/docs/v6e",),
        ),
        Generation(
            "tpu7x",
            "tpu7x",
            "TPU-V7X",
            "v7x",
            2,
            {1: "tpu7x-standard-1t", 4: "tpu7x-standard-4t"},
            {1: "1x1x1", 4: "2x2x1"},
            (f"{_CLOUD}/tpu/docs/tpu7x", f"{_CLOUD}/kubernetes-engine/docs/concepts/tpu-ironwood"),
        ),
    )
}

# What people call a generation, in lower case and without "tpu-" in front.
ALIASES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5-lite-podslice": "v5e",
    "v5-lite": "v5e",
    "v5p-slice": "v5p",
    "v4-podslice": "v4",
    "v6e-slice": "v6e",
    "trillium": "v6e",
    "v6": "v6e",
    "ironwood": "tpu7x",
    "v7x": "tpu7x",
    "7x": "tpu7x",
    "v7": "tpu7x",
}

MULTI_HOST_CHIPS = 4
"""Chips per host of every multi-host slice (GKE: multi-host pools are of the 4-chip machines alone)."""

_DIMENSIONS_2D = "2x4 4x4 4x8 8x8 8x16 16x16"
_MULTI_HOST = {
    ("v5e", Tier.DOCUMENTED): _DIMENSIONS_2D,
    ("v6e", Tier.DOCUMENTED): _DIMENSIONS_2D,
    ("v4", Tier.DOCUMENTED): "2x2x2 2x2x4 2x4x4 4x4x4 12x16x16",
    ("v4", Tier.RULE): (
        "4x4x8 4x4x12 4x4x16 4x8x8 4x8x12 4x8x16 8x8x8 4x12x12 4x12x16 8x8x12 4x16x16 8x8x16 8x12x12 8x12x16 "
        "12x12x12 8x16x16 12x12x16"
    ),
    ("v4", Tier.TOOLING_ONLY): "16x16x16",
    ("v5p", Tier.DOCUMENTED): "2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24",
    ("v5p", Tier.RULE): (
        "4x4x12 4x4x16 4x4x20 4x4x24 4x8x12 4x8x16 4x12x12 4x8x20 4x8x24 4x12x16 8x8x12 4x12x20 4x16x16 "
        "4x12x24 8x12x12 4x16x20 8x8x20 4x16x24 8x8x24 8x12x16 12x12x12 8x12x20 8x12x24 12x12x16 8x16x20 "
        "12x12x20 8x16x24 12x16x16 12x12x24 12x16x20 12x16x24 16x16x20"
    ),
    ("v5p", Tier.TOOLING_ONLY): (
        "4x4x28 4x8x28 4x12x28 4x20x20 8x8x28 4x20x28 8x12x28 8x20x20 8x16x28 12x12x28 8x20x28 12x20x20 "
        "12x16x28 12x20x24 16x20x28"
    ),
    ("tpu7x", Tier.DOCUMENTED): "2x2x2 2x2x4 4x4x4 4x8x8 4x12x16",
    ("tpu7x", Tier.RULE): (
        "2x4x4 4x4x8 4x4x12 4x4x16 4x4x20 4x4x24 4x8x12 4x8x16 8x8x8 4x12x12 4x8x20 4x8x24 8x8x12 4x12x20 "
        "4x16x16 8x8x16 4x12x24 8x12x12 4x16x20 8x8x20 4x16x24 8x8x24 8x12x16 4x20x20 12x12x12 4x20x24 "
        "8x12x20 8x16x16 4x24x24 8x12x24 12x12x16 8x16x20 12x12x20 8x16x24 12x16x16 8x20x20 12x12x24 8x20x24 "
        "12x16x20 16x16x16 8x24x24 12x16x24 12x20x20 16x16x20 12x20x24 16x16x24 16x20x20 12x24x24 16x20x24 "
        "16x24x24"
    ),
}


# The edges of Ray 2.60's own tables (ray._private.accelerators.tpu); a contract test holds them against the installed.
_RAY_LARGEST = {"v4": (12, 12, 16), "v5p": (16, 16, 24)}
_RAY_TPU7X = frozenset(("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"))


@dataclass(frozen=True, slots=True)
class Shape:
    """One row: this topology of this generation on this machine type. Counts are per slice."""

    generation: Generation
    topology: str
    chips_per_host: int
    tier: Tier

    @property
    def machine_type(self) -> str:
        return self.generation.machines[self.chips_per_host]

    @property
    def chips(self) -> int:
        return prod(dimensions(self.topology))

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def multi_host(self) -> bool:
        return self.hosts > 1

    @property
    def pod_type(self) -> str:
        """Ray's and the TPU runtime's name, ``TPU_ACCELERATOR_TYPE``; several shapes can share one (Ray 2.60)."""
        return f"{self.generation.ray_version}-{self.chips * self.generation.cores_per_chip}"

    @property
    def head_resource(self) -> str:
        """The Ray resource that the slice's worker 0 alone has (Ray 2.60)."""
        return f"TPU-{self.pod_type}-head"

    @property
    def node_selector(self) -> dict[str, str]:
        """Both labels that a GKE node of this shape carries; the TPU webhook and Ray's autoscaler each need one."""
        return {
            "cloud.google.com/gke-tpu-accelerator": self.generation.gke_accelerator,
            "cloud.google.com/gke-tpu-topology": self.topology,
        }

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the shape and its machine are stated: pages, or the tools that alone make it."""
        if self.tier is not Tier.TOOLING_ONLY:
            return (*self.generation.documents, _MACHINES)
        return (*_TOOLS, _MACHINES) if self.hosts == 1 else _TOOLS

    @property
    def ray_knows(self) -> bool:
        """Whether Ray 2.60's own topology table has it; ``slice_placement_group`` refuses a shape that it lacks."""
        sides = dimensions(self.topology)
        if self.generation.name == "tpu7x":
            return self.topology in _RAY_TPU7X
        largest = _RAY_LARGEST.get(self.generation.name)
        return largest is None or all(side <= most for side, most in zip(sides, largest, strict=True))

    @property
    def ray_chips_per_host(self) -> int:
        """What Ray 2.60 takes for the chips of one host when nobody tells it: wrong where it differs from ours."""
        if self.generation.cores_per_chip == 1 and self.chips <= 8:
            return self.chips
        return MULTI_HOST_CHIPS

    @property
    def workaround(self) -> str:
        """What to do where Ray 2.60 and GKE disagree about this shape; empty where they agree."""
        if not self.ray_knows:
            return f"Use a shape that Ray knows: {', '.join(_known_near(self))}."
        if self.ray_chips_per_host != self.chips_per_host:
            return (
                f"Keep to one such slice in a cluster, or use {self.generation.machines[self.chips]}, which holds "
                f"{self.topology} in 1 host."
            )
        return ""


def dimensions(topology: str) -> tuple[int, ...]:
    """``"4x4"`` as ``(4, 4)``."""
    return tuple(int(side) for side in topology.split("x"))


@functools.cache
def shapes() -> tuple[Shape, ...]:
    """Every row, by generation, then machine, then chips."""
    rows = []
    for generation in GENERATIONS.values():
        for chips_per_host, topology in generation.single_host.items():
            # The one-chip Ironwood machine is in the autoscaler's tables but in no document.
            known = Tier.TOOLING_ONLY if generation.name == "tpu7x" and chips_per_host == 1 else Tier.DOCUMENTED
            rows.append(Shape(generation, topology, chips_per_host, known))
        for (name, tier), topologies in _MULTI_HOST.items():
            if name == generation.name:
                rows += [Shape(generation, topology, MULTI_HOST_CHIPS, tier) for topology in topologies.split()]
    return tuple(rows)


@functools.cache
def find(generation: str, topology: str) -> tuple[Shape, ...]:
    """The rows of one topology: none, one, or two where the machine type decides."""
    return tuple(row for row in shapes() if row.generation.name == generation and row.topology == topology)


@functools.cache
def pod_type_sharers(shape: Shape) -> tuple[Shape, ...]:
    """The other topologies of the same pod type, which ``reserve_tpu_slice`` cannot tell from it (Ray 2.60)."""
    return tuple(row for row in shapes() if row.pod_type == shape.pod_type and row.topology != shape.topology)


@functools.cache
def _known_near(shape: Shape) -> tuple[str, ...]:
    """The next smaller and larger shape that Ray knows, and the largest that gives as many chips as several slices."""
    known = [row for row in shapes() if row.generation.name == shape.generation.name and row.ray_knows]
    known.sort(key=lambda row: row.chips)
    smaller = [row for row in known if row.chips <= shape.chips][-1:]
    larger = [row for row in known if row.chips > shape.chips][:1]
    parts = [row for row in known if row.multi_host and row.chips < shape.chips and shape.chips % row.chips == 0][-1:]
    several = [f"{row.topology} x {shape.chips // row.chips} slices (num_slices)" for row in parts]
    return (*(f"{row.topology} ({row.chips} chips)" for row in smaller + larger), *several)
