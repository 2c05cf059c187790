"""Catalog files as specs: one file per name, read once, its name equal to its stem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from pydantic import BaseModel

from pcie_sim.catalog.lookup import Kind, file_of, names, resolve
from pcie_sim.errors import InputError
from pcie_sim.specs.base import build
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.kernel_profile import KernelProfile
from pcie_sim.specs.loader import parse_yaml, read_text
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.part import Part
from pcie_sim.specs.runtime import RuntimeSpec

if TYPE_CHECKING:
    from pcie_sim.specs.calibration import CalibrationSpec, ConstantsFile

SpecT = TypeVar("SpecT", bound=BaseModel)

_PARTS: dict[str, type[BaseModel]] = {get_args(part.model_fields["kind"].annotation)[0]: part for part in get_args(get_args(Part)[0])}


KERNELS = "kernels-"
"""Names of kernel profiles begin so; the other profiles are calibrations of boxes."""
_IN_PLACE: ContextVar[Mapping[str, Part] | None] = ContextVar("parts in place of files", default=None)


@contextmanager
def using_parts(parts: Mapping[str, Part]) -> Iterator[None]:
    """Inside the block these parts (by canonical name) stand in place of the files: how a fit tries other constants.

    Topologies keep the parts that they were built with: build them inside the block.
    """
    token = _IN_PLACE.set({**(_IN_PLACE.get() or {}), **parts})
    try:
        yield
    finally:
        _IN_PLACE.reset(token)


@contextmanager
def without_replacements() -> Iterator[None]:
    """Inside the block the files count, whatever :func:`using_parts` put in their place outside."""
    token = _IN_PLACE.set(None)
    try:
        yield
    finally:
        _IN_PLACE.reset(token)


def load_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias.

    Raises:
        UnknownNameError: no such GPU.
    """
    return _load("gpus", resolve("gpus", name), GpuSpec)


def load_model_spec(name: str) -> ModelSpec:
    """The shipped model of that name or alias.

    Raises:
        UnknownNameError: no such model.
    """
    return _load("models", resolve("models", name), ModelSpec)


def load_runtime(name: str) -> RuntimeSpec:
    """The serving engine of that name or alias.

    Raises:
        UnknownNameError: no such runtime.
    """
    return _load("runtimes", resolve("runtimes", name), RuntimeSpec)


def load_kernel_profile(name: str) -> KernelProfile:
    """The kernel profile of that name or alias.

    Raises:
        UnknownNameError: no such profile.
    """
    return _load("profiles", resolve("profiles", name), KernelProfile)


def kernel_profile_names() -> tuple[str, ...]:
    """Names of the shipped kernel profiles."""
    return tuple(name for name in names("profiles") if name.startswith(KERNELS))


def calibration_names() -> tuple[str, ...]:
    """Names of the shipped calibrations of public boxes."""
    return tuple(name for name in names("profiles") if not name.startswith(KERNELS))


def load_calibration_profile(name: str) -> CalibrationSpec:
    """The calibration of a public box by its name.

    Raises:
        UnknownNameError: no such profile.
        InputError: a kernel profile.
    """
    from pcie_sim.specs.calibration import CalibrationSpec

    canonical = resolve("profiles", name)
    if canonical.startswith(KERNELS):
        raise InputError(f"{canonical} is a profile of kernels, not of a box; known: {', '.join(calibration_names())}")
    return _load("profiles", canonical, CalibrationSpec)


@lru_cache(maxsize=1)
def load_constants() -> ConstantsFile:
    """What a calibration fits, and where every fit begins."""
    from pcie_sim.specs.calibration import ConstantsFile

    path = file_of("profiles", "_constants")
    text = read_text(path)
    return build(ConstantsFile, parse_yaml(text, source=str(path)), source=str(path), text=text)


def load_part(name: str) -> Part:
    """The part of that name or alias, of whichever kind its file says.

    Raises:
        UnknownNameError: no such part.
    """
    canonical = resolve("parts", name)
    other = (_IN_PLACE.get() or {}).get(canonical)
    return other if other is not None else cast(Part, _load("parts", canonical, None))


def load_typed_part(name: str, kind: type[SpecT]) -> SpecT:
    """As :func:`load_part`, where only one kind of part will do (``SocketPart``).

    Raises:
        UnknownNameError: no such part.
        InputError: a part of another kind.
    """
    part = load_part(name)
    if not isinstance(part, kind):
        wanted = get_args(kind.model_fields["kind"].annotation)[0]
        raise InputError(f"part {part.name!r} is of kind {part.kind}; a part of kind {wanted} is needed here")
    return part


def _load(kind: Kind, name: str, spec: type[SpecT] | None) -> SpecT:
    """The spec in the file of the canonical ``name``; ``spec`` None picks the part class by the file's ``kind``."""
    return cast(SpecT, _load_file(kind, name, spec))


@lru_cache(maxsize=512)
def _load_file(kind: Kind, name: str, spec: type[BaseModel] | None) -> BaseModel:
    path = file_of(kind, name)
    text = read_text(path)
    data = parse_yaml(text, source=str(path))
    loaded = build(spec or _part_class(data, str(path)), data, source=str(path), text=text)
    if getattr(loaded, "name", None) != name:
        raise InputError(f"{path}: name: {getattr(loaded, 'name', None)!r} must be the file's stem {name!r}")
    return loaded


def _part_class(data: Any, source: str) -> type[BaseModel]:
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _PARTS:
        raise InputError(f"{source}: kind: must be one of {', '.join(_PARTS)}, found {str(kind)[:40]!r}")
    return _PARTS[kind]
