"""The environment that is set for a command: only the settings that say something here, and no more of them than a person writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_LIBRARY = 200
"""Settings of NCCL and RCCL kept of one command (both know fewer)."""
_MAX_OTHERS = 200
_MAX_VALUE = 2000
LIBRARY = ("NCCL_", "RCCL_")
ENGINE = ("VLLM_", "SGLANG_", "SGL_", "CUDA_DEVICE_MAX", "TORCH_NCCL_")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass
class Settings:
    """Settings by name, the last value of each. ``more``: settings of the library left out beyond :data:`MAX_LIBRARY`."""

    library: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    more: int = 0

    def set(self, name: str, value: str) -> None:
        """Keep one setting; of what says nothing about a prediction nothing is kept."""
        if name.startswith(LIBRARY):
            if name not in self.library and len(self.library) >= MAX_LIBRARY:
                self.more += 1
            else:
                self.library[name] = value[:_MAX_VALUE]
        elif name.startswith((*ENGINE, *VISIBLE)) and (name in self.others or len(self.others) < _MAX_OTHERS):
            self.others[name] = value[:_MAX_VALUE]

    def update(self, values: Mapping[str, str]) -> None:
        """Keep several."""
        for name, value in values.items():
            self.set(name, value)

    def get(self, name: str) -> str:
        """The value of a setting; empty where it is not set."""
        return self.library.get(name) or self.others.get(name, "")

    def copy(self) -> Settings:
        """The same settings, to go on with."""
        return Settings(dict(self.library), dict(self.others), self.more)
