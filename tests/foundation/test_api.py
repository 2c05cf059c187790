"""The public API, frozen: names, signatures, docstrings, and what importing it costs.

A new verb or option is added to the tables below when it works; nothing is renamed or removed without a word in the changelog.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pcie_sim as ps

ROOT = Path(ps.__file__).parents[1]

NAMES = [
    "InfeasibleError",
    "InputError",
    "NoDataError",
    "PcieSimError",
    "__version__",
    "calibrate",
    "collective",
    "compare",
    "flows",
    "import_any",
    "load_calibration",
    "load_gpu",
    "load_model",
    "load_topology",
    "predict",
]
BOX = "nccl=None, env=None, p2p=None"
ENGINE = "launch=None, pp_layers=None, popularity='uniform', mem_fraction=None, max_running=None"
SIGNATURES = {
    "calibrate": "(topology, logs, *, prior='auto', leave_out=(), gpu=None, name=None)",
    "collective": "(topology, op, size, *, ranks=None, algorithm='auto', protocol='auto', launch=None, engine='analytic', "
    + BOX
    + ", order=None, calibration=None)",
    "compare": "(topology, *, model, strategies=None, concurrency=(1, 2, 4, 8, 16, 32, 64), context=1024, runtime='sglang', "
    f"{BOX}, {ENGINE}, calibration=None)",
    "flows": "(source)",
    "import_any": "(*files, gpu=None, name=None)",
    "load_calibration": "(file)",
    "load_gpu": "(name)",
    "load_model": "(name_or_path)",
    "load_topology": "(name_or_path, *, gpu=None)",
    "predict": f"(topology, *, model, strategy, concurrency=1, context=1024, runtime='sglang', {BOX}, {ENGINE}, calibration=None)",
}
FIRST = {
    "calibrate": ["topology", "logs"],
    "collective": ["topology", "op", "size"],
    "flows": ["source"],
    "import_any": ["files"],
    "load_calibration": ["file"],
    "load_gpu": ["name"],
}
"""Arguments that may be given by place; the one first argument of the others is ``topology`` or ``name_or_path``."""
HEAVY = ["numpy", "scipy", "pydantic", "networkx", "matplotlib", "typer", "rich", "plotly", "pandas", "yaml"]
HEAVY_FOR_STUDY = ["scipy", "networkx", "matplotlib", "rich", "typer", "plotly", "pandas"]


def functions() -> list[str]:
    return [name for name in ps.__all__ if inspect.isfunction(getattr(ps, name))]


def test_the_names_are_frozen() -> None:
    assert ps.__all__ == NAMES
    assert dir(ps) == sorted(NAMES)


def test_the_signatures_are_frozen() -> None:
    found = {}
    for name in functions():
        signature = inspect.signature(getattr(ps, name))
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
        found[name] = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert found == SIGNATURES


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_everything_but_the_first_arguments_is_keyword_only(name: str) -> None:
    parameters = inspect.signature(getattr(ps, name)).parameters.values()
    by_place = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place in (FIRST.get(name, ["topology"]), FIRST.get(name, ["name_or_path"]))
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__version__"}))
def test_public_objects_are_documented(name: str) -> None:
    thing = getattr(ps, name)
    text = inspect.getdoc(thing)
    assert text
    assert len(text) > 30
    if inspect.isfunction(thing):
        assert "Raises:" in text
        assert "InputError" in text


@pytest.mark.parametrize("name", sorted({"Comparison", "Prediction", "Timing", "FlowsResult", "CalibrationReport"}))
def test_results_can_all_do_the_same(name: str) -> None:
    from pcie_sim.results import calibration, comparison, timing

    kind = next(getattr(room, name) for room in (calibration, comparison, timing) if hasattr(room, name))
    for method in ("to_records", "to_dict", "to_json"):
        assert inspect.getdoc(getattr(kind, method))
    assert inspect.getdoc(kind)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'pcie_sim' has no attribute 'comparee'"):
        ps.comparee  # noqa: B018
    assert not hasattr(ps, "_ssh")


def test_what_type_checkers_see_is_what_is_there() -> None:
    tree = ast.parse((ROOT / "pcie_sim" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.asname: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname
    }
    assert seen == ps._HOMES
    assert sorted([*seen, "__version__"]) == NAMES


def loaded(statement: str, names: list[str]) -> list[str]:
    script = f"{statement}\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout))


def test_importing_the_package_imports_no_library() -> None:
    assert loaded("import pcie_sim\npcie_sim.__version__", HEAVY) == []
    assert loaded("from pcie_sim import InputError, PcieSimError", HEAVY) == []


def test_importing_the_verbs_leaves_the_slow_libraries_out() -> None:
    assert loaded("import pcie_sim.study", HEAVY_FOR_STUDY) == []


def test_the_example_of_the_design() -> None:
    box = ps.load_topology("rtx-pro-6000-8x-2switch")
    runs = ps.compare(box, model="kimi-k2.6", strategies=["tp8", "pp8", "ep8"], concurrency=[1, 4, 8, 16])
    assert len(runs.to_records()) == 12
    winner = runs.winner(concurrency=1)
    assert winner is not None
    assert winner.strategy in runs.strategies
    assert winner.strategy in runs.explain()
    point = ps.predict(box, model="kimi-k2.6", strategy="tp8", concurrency=8).point
    same = runs.point("tp8", concurrency=8)
    assert point.tpot_ms == pytest.approx(same.tpot_ms, rel=1e-9)
    assert point.breakdown_ms == pytest.approx(dict(same.breakdown_ms), rel=1e-9)
    assert (point.tpot_ms_p10, point.tpot_ms_p90) == pytest.approx((same.tpot_ms_p10, same.tpot_ms_p90), rel=2e-3)
    assert ps.collective(box, "all_reduce", "14KiB", algorithm="ring", engine="event").time_s > 0
