"""Specs as YAML text that the loader reads back as it was: text that would be taken for a number there is quoted."""

from __future__ import annotations

from typing import Any

import yaml

from pcie_sim.specs.loader import RESOLVERS


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which quotes what YAML 1.1 would misread, and what the loader (YAML 1.2) would."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - never: a value used twice is written twice
        return True


_Dumper.yaml_implicit_resolvers = {key: list(found) for key, found in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for _tag, _pattern, _first in RESOLVERS:
    for _char in _first:
        _Dumper.yaml_implicit_resolvers.setdefault("" if _char == "\0" else _char, []).append((_tag, _pattern))


def block(data: Any) -> str:
    """``data`` over several lines, keys in their order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=130))


def flow(item: Any) -> str:
    """``item`` on one line, without a line's end."""
    whole = item if isinstance(item, list | dict) else [item]
    text = str(yaml.dump(whole, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)).strip()
    return text if whole is item else text[1:-1]
