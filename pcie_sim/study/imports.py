"""Other people's files -> boxes, models, measurements: :func:`import_any`, and the loaders that take such files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers import Imported, Launch, Remark, SourceText, read_any, read_source
from pcie_sim.importers.build import BuiltBox, box_over, build_box
from pcie_sim.importers.facts import MatrixFact
from pcie_sim.importers.matrix_tree import pair_words
from pcie_sim.importers.relate import Related, RelatedMatrix
from pcie_sim.results.base import Result, plain
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.model import ModelSpec
from pcie_sim.study.arguments import Where, path_text
from pcie_sim.study.loading import YAML, hinted
from pcie_sim.topology import Topology, from_spec
from pcie_sim.topology import load_topology as _load_topology
from pcie_sim.units import counted

MAX_FILES = 64
_WORDS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "NVL": "NVL", "NVB": "NVL"}


@dataclass(frozen=True)
class ImportResult(Result):
    """What files turned out to hold.

    Attributes:
        topology: the box, where a file shows its tree (or is a topology file); None otherwise.
        model: the model of a config.json or model file.
        measurements: benchmark tables as measurement sets.
        launch: what a serve command says.
        related: facts by the box's node names (what the doctor looks at).
        remarks: everything assumed, ignored, cut or contradictory.
    """

    files: tuple[Imported, ...]
    topology: Topology | None
    model: ModelSpec | None
    measurements: tuple[MeasurementSet, ...]
    launch: Launch | None
    related: Related
    remarks: tuple[Remark, ...]

    def said(self, kind: str) -> tuple[str, ...]:
        """The remarks of one kind (assumed, ignored, cut, conflict, note) as text."""
        return tuple(str(remark) for remark in self.remarks if remark.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/import/1``."""
        return {
            "schema": "pcie-sim/import/1",
            "files": [{"file": Path(one.source).name, "formats": list(one.formats), "holds": list(holds(one))} for one in self.files],
            "topology": None if self.topology is None else _dump(self.topology.spec),
            "model": None if self.model is None else _dump(self.model),
            "measurements": [_dump(measured) for measured in self.measurements],
            "launch": None if self.launch is None else plain({key: getattr(self.launch, key) for key in self.launch.__dataclass_fields__}),
            "assumed": list(self.said("assumed")),
            "ignored": list(self.said("ignored")),
            "cut": list(self.said("cut")),
            "conflicts": list(self.said("conflict")),
            "notes": list(self.said("note")),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a file."""
        return [{"file": Path(one.source).name, "formats": ", ".join(one.formats), "holds": "; ".join(holds(one))} for one in self.files]


def _dump(spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    return found


def holds(one: Imported) -> tuple[str, ...]:
    """What a file holds, in words with counts."""
    box, found = one.box, []
    gpus = sum(device.kind == "gpu" for device in box.devices)
    if box.devices:
        found.append(f"a tree of {len(box.devices)} devices, {gpus} GPU{'s' if gpus != 1 else ''}")
    if box.gpus:
        count = len({gpu.index for gpu in box.gpus})
        found.append(f"{count} GPU{'s' if count != 1 else ''}")
    found += [f"{_MATRIX_WORDS[matrix.kind]} of {counted(len(matrix.labels), 'GPU')}" for matrix in box.matrices]
    for ccl in box.ccl:
        ranks = f" of {ccl.nranks} ranks" if ccl.nranks else ""
        rings = f", {len(ccl.rings)} ring{'s' if len(ccl.rings) != 1 else ''}" if ccl.rings else ""
        pairs = f", transports of {len(ccl.transports)} pairs" if ccl.transports else ""
        found.append(f"{ccl.name.upper()} {ccl.version or '(version not said)'}{ranks}{rings}{pairs}")
    for measured in one.measurements:
        what = sorted({row.op for row in measured.rows if row.op} or {measured.kind})
        found.append(f"{len(measured.rows)} rows of {', '.join(what)}")
    if box.host is not None:
        counts = {"socket": box.host.sockets, "NUMA node": box.host.numa_nodes}
        said = [f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts.items() if count is not None]
        found.append(", ".join([*([box.host.cpu_name] if box.host.cpu_name else []), *said]))
    if one.model is not None:
        found.append(f"model {one.model.name}")
    if one.topology is not None:
        found.append(f"topology {one.topology.name}")
    if one.launch is not None:
        found.append(f"{one.launch.runtime} {one.launch.strategy}")
    return tuple(dict.fromkeys(text for text in found if text))


_MATRIX_WORDS = {
    "path": "path types",
    "p2p_status": "peer-access status",
    "peer_access": "peer access",
    "bandwidth": "bandwidths",
    "latency": "latencies",
}


def import_any(*files: Where, gpu: str | None = None, name: str | None = None) -> ImportResult:
    """Everything that the files say: one box, one model, measurements, a serve command.

    Files may be ``nvidia-smi topo -m``, lspci, an NCCL topology dump or log, nccl-tests tables, a config.json, a serve command, the
    results of a benchmark and more; several about one box are merged, the better evidence wins.

    Args:
        files: paths.
        gpu: the GPU model where the files do not say it.
        name: of the topology.

    Raises:
        InputError: a file that is missing, of no known format, or that only looks like one; files that contradict each other as a whole.
    """
    read = read_files(files)
    return assemble(read, gpu=gpu, name=name)


def read_files(files: Iterable[Where]) -> tuple[Imported, ...]:
    """Each file by itself.

    Raises:
        InputError: none, too many, or as :func:`import_any`.
    """
    paths = [path_text(file, "files") for file in files]
    if not paths:
        raise InputError("files: give at least one file")
    if len(paths) > MAX_FILES:
        raise InputError(f"files: {len(paths)} are too many; give at most {MAX_FILES}")
    return tuple(read_any(read_source(path)) for path in paths)


def assemble(
    read: Sequence[Imported], *, gpu: str | None = None, name: str | None = None, force: bool = False, more: Sequence[Remark] = ()
) -> ImportResult:
    """One result from files that were read.

    Args:
        read: the files.
        gpu: the GPU model where the files do not say it.
        name: of the topology.
        force: a box is wanted even where no file draws a tree.
        more: remarks made before.

    Raises:
        InputError: as :func:`import_any`.
    """
    models = [one.model for one in read if one.model is not None]
    if len(models) > 1:
        raise InputError(f"two models ({models[0].name}, {models[1].name}); give the files of one")
    topology: Topology | None = None
    remarks = tuple(dict.fromkeys(remark for one in read for remark in one.remarks))
    related = Related()
    if force or any(_draws_tree(one) for one in read):
        built = build_box(read, gpu=gpu, name=name)
        topology, related, remarks = _checked(built)
    return ImportResult(
        files=tuple(read),
        topology=topology,
        model=models[0] if models else None,
        measurements=tuple(measured for one in read for measured in one.measurements),
        launch=next((one.launch for one in read if one.launch is not None), None),
        related=related,
        remarks=tuple(dict.fromkeys((*more, *remarks))),
    )


def _draws_tree(one: Imported) -> bool:
    box = one.box
    return (
        one.topology is not None
        or any(device.kind == "gpu" for device in box.devices)
        or any(matrix.kind == "path" for matrix in box.matrices)
    )


def _checked(built: BuiltBox) -> tuple[Topology, Related, tuple[Remark, ...]]:
    """The box, with a remark for every matrix of path words that its tree does not give back."""
    topology = from_spec(built.spec, source=" + ".join(built.related.sources[:3]) or built.spec.name)
    conflicts = [remark for one in built.related.matrices if one.matrix.kind == "path" for remark in path_conflicts(topology, one)]
    if not conflicts:
        return topology, built.related, built.remarks
    notes = (*built.spec.notes, *(str(remark)[:900] for remark in conflicts))
    spec = built.spec.model_copy(update={"notes": notes})
    related = replace(built.related, remarks=(*built.related.remarks, *conflicts))
    return from_spec(spec, source=built.spec.name), related, (*built.remarks, *conflicts)


def path_conflicts(topology: Topology, one: RelatedMatrix) -> list[Remark]:
    """Pairs whose path word in a matrix is not the tree's path type."""
    matrix: MatrixFact = one.matrix
    wrong = []
    for (i, j), word in pair_words(matrix).items():
        a, b = one.nodes[i], one.nodes[j]
        if a is None or b is None or a == b:
            continue
        said = "NVL" if word.startswith("NV") else _WORDS.get(word)
        has = topology.path_type(a, b)
        if said is not None and said != has:
            wrong.append(f"GPU{matrix.labels[i]}-GPU{matrix.labels[j]} {word}, the tree has {has}")
    if not wrong:
        return []
    more = f" (and {len(wrong) - 3} more pairs)" if len(wrong) > 3 else ""
    return [Remark("conflict", "; ".join(wrong[:3]) + more, one.source, matrix.line)]


def box_of_file(path: str, gpu: str | None = None) -> Topology | None:
    """The box in a file of another program; None where it is one of our own (JSON) files.

    Raises:
        InputError: as :func:`import_any`.
    """
    source = read_source(path)
    if path.lower().endswith(".json") and _is_own(source):
        return None
    return _box_of(read_any(source), gpu)


def _is_own(source: SourceText) -> bool:
    from pcie_sim.importers.own import sniff

    return sniff(source) is not None or '"nodes"' in source.raw[:200_000]


def _box_of(one: Imported, gpu: str | None) -> Topology:
    if one.topology is not None:
        return from_spec(one.topology, source=one.source)
    if one.model is not None:
        raise InputError(f"{one.source}: is a model ({one.model.title}); give it as --model, and a box here")
    return _checked(build_box([one], gpu=gpu))[0]


def load_box(topology: Where | Sequence[Where], logs: Iterable[Where] = (), *, gpu: str | None = None) -> tuple[Topology, Related]:
    """A box and the facts of files about it, by its node names.

    Args:
        topology: a shipped name, a topology file, or files of other programs.
        logs: further files about the same box; beside files of other programs they help to draw the tree.
        gpu: the GPU model where the files do not say it.

    Raises:
        InputError: as :func:`load_topology` and :func:`import_any`.
    """
    first = [
        path_text(one, "topology") for one in ([topology] if isinstance(topology, str) or hasattr(topology, "__fspath__") else topology)
    ]
    more = [path_text(one, "logs") for one in logs]
    if len(first) == 1 and (not catalog.is_path(first[0]) or first[0].lower().endswith(YAML)):
        own = hinted(first[0], lambda: _load_topology(first[0]))
        built = box_over(own.spec, read_files(more) if more else (), gpu=gpu)
    else:
        built = build_box(read_files([*first, *more]), gpu=gpu)
    box, related, remarks = _checked(built)
    return box, replace(related, remarks=remarks)


def model_of_files(*files: Where, name: str | None = None) -> ModelSpec:
    """The model of a Hugging Face ``config.json`` and, where it stands beside it, the ``hf_quant_config.json`` of the same model.

    Args:
        files: the files, or one folder that holds them.
        name: of the model; None: by the files.

    Raises:
        InputError: no model in the files, several, or a file that is missing, broken or incomplete.
    """
    model = import_model(*files, name=name).model
    assert model is not None  # noqa: S101 - else refused
    return model


def import_model(*files: Where, name: str | None = None) -> ImportResult:
    """As :func:`model_of_files`, with the files and the remarks.

    Raises:
        InputError: as :func:`model_of_files`.
    """
    paths = [path for file in files for path in _model_files(path_text(file, "model"))]
    read = read_files(paths)
    models = [one.model for one in read if one.model is not None]
    if not models and any("quantisation" in one.details for one in read):
        one = next(one for one in read if "quantisation" in one.details)
        raise InputError(f"{one.source}: says how weights are stored, not a model's dimensions; give its config.json beside it")
    if len(models) != 1:
        held = "; ".join(f"{one.source}: {', '.join(holds(one)) or ', '.join(one.formats)}" for one in read[:3])
        raise InputError(f"{held}\n{'no model here; give its config.json' if not models else 'several models; give the files of one'}")
    model = models[0]
    for one in read:
        if one.model is None:
            from pcie_sim.importers.hf_config import with_quantisation

            model = with_quantisation(model, one)
    # A file of formats alone says that it is no model: here it is not alone.
    said = [remark for one in read for remark in one.remarks if one.model is not None or remark.kind != "note"]
    remarks = tuple(dict.fromkeys(said))
    assumed = tuple(f"assumed: {remark.text}"[:900] for remark in remarks if remark.kind == "assumed")
    if name is not None:
        model = ModelSpec.model_validate({**model.model_dump(by_alias=True), "name": name})
    missing = tuple(text for text in assumed if text not in model.notes)
    model = model.model_copy(update={"notes": (*model.notes, *missing)}) if missing else model
    return ImportResult(read, None, model, (), None, Related(), remarks)


def _model_files(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(f"{path}: a folder without a config.json; give the file")
    quant = folder / "hf_quant_config.json"
    return [str(config), *([str(quant)] if quant.is_file() else [])]
