"""Topology files: the tree of sockets, root ports, switches and GPUs of one box (contract: ``pcie-sim/topology/1``)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from pcie_sim.specs.base import Name, Spec, Text
from pcie_sim.specs.gpu import PcieLink

NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]
"""A node's name: letters, digits, ``_`` and ``-`` (capacities are called ``<node>.up``, so no dot)."""
MAX_NODES = 512
MOST_VALUES = 30_000
"""Values in a topology file (:func:`pcie_sim.specs.loader.parse_yaml`): as many nodes and peers as may be, with every key, have 16,000."""


def parse_link(value: object) -> object:
    """``gen5 x16`` -> :class:`PcieLink`."""
    if isinstance(value, PcieLink):
        return value
    match = re.fullmatch(r"\s*gen\s*([1-7])\s+x(1|2|4|8|16|32)\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"link {str(value)[:30]!r} is not understood; write it like 'gen5 x16' (gen 1 to 7, x1 to x32)")
    return PcieLink.model_validate({"gen": int(match.group(1)), "width": int(match.group(2))})


LinkText = Annotated[
    PcieLink,
    BeforeValidator(parse_link),
    PlainSerializer(lambda link: f"gen{link.gen} x{link.width}"),
    WithJsonSchema({"type": "string", "pattern": "^gen[1-7] x(1|2|4|8|16|32)$"}),
]


class NodeSpec(Spec):
    """One node of the tree."""

    kind: Literal["host", "socket", "root_port", "switch", "gpu", "nic", "fabric"]
    part: Name | None = None
    parent: NodeName | None = None
    link: LinkText | None = None
    links: Annotated[int, Field(ge=1, le=8)] = 1
    """Parallel links to the parent (uplinks)."""
    bus: Annotated[str, Field(max_length=20)] | None = None
    """PCI bus id (``0000:c1:00.0``): the collective library's ring follows bus order; without it, the order of the file."""
    numa: Annotated[int, Field(ge=0, le=63)] | None = None
    half_duplex: bool = False
    """The link to the parent carries one direction at a time: both share one more capacity, ``<node>.both``."""
    chip: NodeName | None = None
    """Label of the physical switch chip that this (virtual) switch is part of. Virtual switches with the same label pass peer
    traffic inside the chip, while the collective library, which sees separate switches, takes the pair for PHB or SYS."""


class PeerSpec(Spec):
    """A connection outside the tree: between two sockets, two GPUs (NVLink bridge), or of a network card with a fabric (or a card)."""

    between: tuple[NodeName, NodeName]
    part: Name

    @model_validator(mode="after")
    def _two(self) -> PeerSpec:
        if self.between[0] == self.between[1]:
            raise ValueError("a peer connection needs two different nodes")
        return self


def _version_text(value: object) -> object:
    """An unquoted 2.30 reads as the number 2.3: refuse it instead of guessing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'put the version in quotes, like version: "{value}" (2.30 without quotes reads as 2.3)')
    return value


EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,79}$")]


def _env_text(value: object) -> object:
    """``NCCL_P2P_LEVEL: 5`` is as good as ``"5"``. Control characters are refused: values are printed beside every answer."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("the value holds a control character or a line break; write plain text")
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError as exc:
            raise ValueError("the number has thousands of digits; no setting is that large") from exc
    return value


class CclSettings(Spec):
    """The collective library: name and version (``"2.28"``)."""

    name: Literal["nccl", "rccl", "oneccl", "none"] = "nccl"
    version: Annotated[str, Field(pattern=r"^[0-9]{1,4}\.[0-9]{1,3}(\.[0-9]{1,3})?$"), BeforeValidator(_version_text)] = "2.28"

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """``(2, 28)`` or ``(2, 28, 3)``."""
        return tuple(int(part) for part in self.version.split("."))


Condition = Literal["posted_write_collapse"]
"""Faults that some boxes show and others of the same parts do not: in force only when listed."""


class SettingsSpec(Spec):
    """Software and platform state of the box.

    ``max_payload``: bytes per write packet in force (MPS; the smallest in the hierarchy), else the PCIe part's. ``conditions``: faults
    to assume, with the parameters of the box's parts. ``force_p2p``: whether the driver's ForceP2P keys are set; ``false`` sends loads
    and stores of kernels to peers on other root ports through system memory (GPUs that need the keys); unset means not asked.
    """

    p2p: Literal["auto", "on", "off"] = "auto"
    acs: Literal["on", "off"] = "off"
    iommu: Literal["on", "off"] = "off"
    ccl: CclSettings = CclSettings()
    env: dict[EnvName, Annotated[Text, BeforeValidator(_env_text)]] = Field(default_factory=dict)
    max_payload: Literal[128, 256, 512] | None = None
    conditions: tuple[Condition, ...] = ()
    force_p2p: bool | None = None


class TopologySpec(Spec):
    """A box, or several joined by a network. Parents: socket -> host; root_port -> socket; switch -> root_port or switch; gpu, nic ->
    root_port, switch or socket (a socket parent stands for a root port of its own); host, fabric: none.
    """

    schema_: Literal["pcie-sim/topology/1"] = Field(alias="schema")
    name: Name
    title: Text = ""
    sources: tuple[Text, ...] = ()
    nodes: Annotated[dict[NodeName, NodeSpec], Field(min_length=1, max_length=MAX_NODES)]
    peers: Annotated[tuple[PeerSpec, ...], Field(max_length=MAX_NODES)] = ()
    settings: SettingsSpec = SettingsSpec()
    assumptions: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
