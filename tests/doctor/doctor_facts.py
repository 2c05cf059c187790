"""Facts about boxes as importers would find them, made by hand for tests of the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pcie_sim import study
from pcie_sim.importers.facts import CclFact, DeviceFact, LinkFact, MatrixFact, MatrixKind
from pcie_sim.importers.relate import Related, RelatedCcl, RelatedMatrix, RelatedMeasurement
from pcie_sim.results.finding import Diagnosis, Finding
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.topology import Topology, from_spec

GBPS = 1e9
SYS = {"NCCL_P2P_LEVEL": "SYS"}


def load(name: str = "rtx-pro-6000-8x-2switch", **settings: object) -> Topology:
    """A shipped box, with other settings where given."""
    box = study.load_topology(name)
    return box.with_settings(**settings) if settings else box  # type: ignore[arg-type]


def relinked(box: Topology, **links: str) -> Topology:
    """``box`` with other links, like ``gpu3="gen5 x8"``."""
    data = box.spec.model_dump(mode="json", by_alias=True)
    for node, link in links.items():
        data["nodes"][node]["link"] = link
    return from_spec(type(box.spec).model_validate(data))


def many(first: str, count: int) -> Topology:
    """A box of root ports with ``count`` GPUs: copies of the first one of the shipped box ``first``."""
    spec = study.load_topology(first).spec
    data = spec.model_dump(mode="json", by_alias=True)
    for index in range(count):
        data["nodes"][f"rp{index}"] = data["nodes"]["rp0"]
        data["nodes"][f"gpu{index}"] = {**data["nodes"]["gpu0"], "parent": f"rp{index}"}
    return from_spec(type(spec).model_validate(data))


def device(node: str, now: LinkFact | None, most: LinkFact | None, **more: object) -> DeviceFact:
    """A GPU of lspci."""
    return DeviceFact(key=node, kind="gpu", link=now, link_max=most, line=more.pop("line", 100), **more)  # type: ignore[arg-type]


def port(node: str, most: LinkFact | None, **more: object) -> DeviceFact:
    """The port above a GPU."""
    return DeviceFact(key=f"above-{node}", kind="bridge", role="downstream", bus=f"0000:0{node[-1]}:00.0", link_max=most, **more)  # type: ignore[arg-type]


def linked(now: Mapping[str, LinkFact], most: LinkFact, slot: LinkFact | None, source: str = "lspci.txt", **more: object) -> Related:
    """Links of GPUs: in force by node, what the device can, what the port above can (None: not known)."""
    return Related(
        devices={node: device(node, link, most, line=100 + index) for index, (node, link) in enumerate(now.items())},
        above={} if slot is None else {node: port(node, slot) for node in now},
        device_source=dict.fromkeys(now, source),
        sources=(source,),
        **more,  # type: ignore[arg-type]
    )


def matrix(
    box: Topology,
    kind: MatrixKind,
    cell: object,
    *,
    source: str = "p2p.log",
    line: int = 7,
    **more: object,
) -> RelatedMatrix:
    """A matrix over all GPUs. ``cell``: one value for all pairs, or a mapping (node, node) -> value (default under None)."""
    rows = []
    for a in box.gpus:
        row: list[str | float | None] = []
        for b in box.gpus:
            value = cell.get((a, b), cell.get(None)) if isinstance(cell, Mapping) else cell
            row.append(None if a == b else value)
        rows.append(tuple(row))
    fact = MatrixFact(kind, tuple(range(len(box.gpus))), tuple(rows), line=line, **more)  # type: ignore[arg-type]
    return RelatedMatrix(fact, box.gpus, source)


def log(box: Topology, *, source: str = "nccl.log", line: int = 3, **facts: object) -> RelatedCcl:
    """What a log says, its ranks in bus order."""
    return RelatedCcl(CclFact(nranks=len(box.gpus), line=line, **facts), dict(enumerate(box.gpus)), source)  # type: ignore[arg-type]


def measured(
    rows: Mapping[int, float],
    *,
    ranks: int,
    op: str = "all_reduce",
    launch: str | None = "graph",
    source: str = "all_reduce.log",
    env: Mapping[str, str] | None = None,
    own_threads: bool | None = None,
) -> RelatedMeasurement:
    """A table of bytes -> seconds, as an nccl-tests importer makes it."""
    made = MeasurementSet.model_validate(
        {
            "schema": "pcie-sim/measurement/1",
            "id": "run",
            "kind": "collective",
            "use": "context",
            "sources": [source],
            "machine": {"gpus": ranks},
            "software": {"env": dict(env or {})},
            "arms": {"run": {"launch": launch, "own_threads": own_threads}},
            "rows": [
                {
                    "arm": "run",
                    "op": op,
                    "ranks": ranks,
                    "bytes": size,
                    "metric": "time",
                    "value": time * 1e6,
                    "unit": "us",
                    "quality": "good",
                }
                for size, time in rows.items()
            ],
        }
    )
    return RelatedMeasurement(made, source)


SIZES = tuple(2**power for power in range(10, 29))
"""1 KiB to 256 MiB, as nccl-tests' -f 2."""


def predicted(box: Topology, sizes: Sequence[int] = SIZES, *, factor: float = 1.0) -> dict[int, float]:
    """AllReduce of all GPUs inside a graph, as the box should give it, times ``factor``."""
    return {size: factor * study.collective(box, "all_reduce", size, launch="graph").time_s for size in sizes}


def only(found: Diagnosis, code: str) -> Finding:
    """The one finding of a check."""
    (one,) = [item for item in found.findings if item.code == code]
    return one


def codes(found: Diagnosis) -> set[str]:
    """Codes of the problems."""
    return {item.code for item in found.problems}


def passed(found: Diagnosis, code: str) -> bool:
    """The check was made and found nothing."""
    return code in dict(found.checked) and code not in {item.code for item in found.findings}


def renoded(box: Topology, **nodes: dict[str, object]) -> Topology:
    """``box`` with other values in some nodes."""
    data = box.spec.model_dump(mode="json", by_alias=True)
    for node, values in nodes.items():
        data["nodes"][node] |= values
    return from_spec(type(box.spec).model_validate(data))
