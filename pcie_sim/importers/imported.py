"""What an importer returns, and the registry of importers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from pcie_sim.errors import InputError
from pcie_sim.importers.facts import BoxFacts
from pcie_sim.importers.source import Remark, SourceText, quoted
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.messages import readable
from pcie_sim.specs.model import ModelSpec


@dataclass(frozen=True)
class Launch:
    """A serve command: what it says about strategy, engine and library. None: not said."""

    runtime: str
    strategy: str
    model: str | None = None
    context: int | None = None
    max_running: int | None = None
    mem_fraction: float | None = None
    launch: str | None = None
    kv_dtype: str | None = None
    quantisation: str | None = None
    custom_all_reduce: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that matter to a prediction, as given."""
    speculation: str | None = None
    gpus: int | None = None
    """How many the command uses (``CUDA_VISIBLE_DEVICES``, ``--gpus``), where it says."""


@dataclass(frozen=True)
class Imported:
    """What one file turned out to hold."""

    source: str
    formats: tuple[str, ...]
    box: BoxFacts = BoxFacts()
    topology: TopologySpec | None = None
    """Only for files that are topology files already."""
    measurements: tuple[MeasurementSet, ...] = ()
    model: ModelSpec | None = None
    launch: Launch | None = None
    remarks: tuple[Remark, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain data that has no place of its own (for example the ring tables of a graph file)."""


Sniff = Callable[[SourceText], int | None]
"""The line (from 1) that shows the format, None where nothing does. Cheap and never raises."""
Read = Callable[[SourceText], Imported]
"""The whole reading. Raises InputError with file and line where the file only looks like the format."""


@dataclass(frozen=True)
class Format:
    """One registered importer. ``whole``: the format is the whole file (XML, JSON), so nothing else is looked for in it."""

    name: str
    title: str
    sniff: Sniff
    read: Read
    whole: bool = False


FORMATS: dict[str, Format] = {}
_MODULES: tuple[str, ...] = (
    "own",
    "nccl_topo",
    "nccl_graph",
    "hwloc",
    "nccl_tests_json",
    "nvbandwidth",
    "hf_config",
    "bench_vllm",
    "bench_sglang",
    "bench_aiperf",
    "bench_guidellm",
    "bench_llama",
    "bench_csv",
    "smi_topo",
    "smi_query",
    "lspci_verbose",
    "lspci_tree",
    "lscpu",
    "nccl_tests",
    "nccl_debug",
    "p2p_test",
    "serve_command",
)
"""Modules of this room that register formats, in the order of asking."""


def importer(name: str, title: str, *, sniff: Sniff, whole: bool = False) -> Callable[[Read], Read]:
    """Register the decorated ``read`` as the importer called ``name``; ``title`` is what people know the format by."""

    def add(read: Read) -> Read:
        @wraps(read)
        def checked(source: SourceText) -> Imported:
            try:
                return read(source)
            except ValidationError as exc:  # a figure that no spec can hold
                first = exc.errors(include_url=False, include_context=False)[0]
                key = ".".join(str(part) for part in first["loc"][-2:])
                raise source.error(f"{title}: a value that cannot be ({key}: {readable(first)[:120]}); the file is damaged there") from exc

        FORMATS[name] = Format(name, title, sniff, checked, whole)
        return checked

    return add


@lru_cache(maxsize=1)
def formats() -> Mapping[str, Format]:
    """Every importer by name, in the order of :data:`_MODULES` (whatever was imported first)."""
    for module in _MODULES:
        import_module(f"pcie_sim.importers.{module}")
    place = {f"pcie_sim.importers.{module}": index for index, module in enumerate(_MODULES)}
    return dict(sorted(FORMATS.items(), key=lambda item: place.get(item[1].read.__module__, len(place))))


def read_any(source: SourceText) -> Imported:
    """All that any importer finds in one file: a paste may hold several tables.

    Raises:
        InputError: no format is recognised, or the only one that is refuses the file.
    """
    matches = [(one, line) for one in formats().values() if (line := one.sniff(source)) is not None]
    whole = [one for one, _line in matches if one.whole]
    chosen = whole[:1] or [one for one, _line in matches]
    found: list[Imported] = []
    refused: list[InputError] = []
    for one in chosen:
        try:
            found.append(one.read(source))
        except InputError as exc:
            refused.append(exc)
    if not found:
        if refused:
            raise refused[0]
        raise InputError(_unknown(source))
    complaints = tuple(Remark("ignored", str(exc).removeprefix(f"{source.name}:").strip(), source.name) for exc in refused)
    together = _together(found)
    return replace(together, remarks=tuple(dict.fromkeys((*source.remarks, *source.cuts, *together.remarks, *complaints))))


def _unknown(source: SourceText) -> str:
    first = next((number for number, line in enumerate(source.lines, 1) if line.strip()), 1)
    return (
        f"{source.name}:{first}: no known format begins like {quoted(source.lines[first - 1], 40)}\n"
        "what can be read: nvidia-smi (topo -m, -L, -q), lspci (-t, -vvv), lscpu, NCCL topology and graph dumps and logs, hwloc XML, "
        "nccl-tests, p2pBandwidthLatencyTest, nvbandwidth, config.json, serve commands, benchmark results"
    )


def _together(parts: list[Imported]) -> Imported:
    if len(parts) == 1:
        return parts[0]
    boxes = [part.box for part in parts]
    box = BoxFacts(
        devices=tuple(device for one in boxes for device in one.devices),
        cpus=tuple(cpu for one in boxes for cpu in one.cpus),
        host=next((one.host for one in boxes if one.host is not None), None),
        gpus=tuple(gpu for one in boxes for gpu in one.gpus),
        matrices=tuple(matrix for one in boxes for matrix in one.matrices),
        ccl=tuple(ccl for one in boxes for ccl in one.ccl),
        iommu=next((one.iommu for one in boxes if one.iommu is not None), None),
        acs_redirect=next((one.acs_redirect for one in boxes if one.acs_redirect is not None), None),
    )
    return Imported(
        source=parts[0].source,
        formats=tuple(name for part in parts for name in part.formats),
        box=box,
        topology=next((part.topology for part in parts if part.topology is not None), None),
        measurements=tuple(one for part in parts for one in part.measurements),
        model=next((part.model for part in parts if part.model is not None), None),
        launch=next((part.launch for part in parts if part.launch is not None), None),
        remarks=tuple(remark for part in parts for remark in part.remarks),
        details={key: value for part in parts for key, value in part.details.items()},
    )
