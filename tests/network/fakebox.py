"""A bare box for tests: GPUs behind switches with round numbers, the same attributes as a Topology, no part files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from pcie_sim.specs.base import Quantity
from pcie_sim.specs.machine import CclSettings, SettingsSpec


def seconds(value: float) -> Quantity:
    return Quantity(value=value, unit="s", evidence="nominal", source="test")


def rate(value: float) -> Quantity:
    return Quantity(value=value, unit="B/s", evidence="nominal", source="test")


def port(value: float) -> SimpleNamespace:
    return SimpleNamespace(rate=rate(value), read_share=None, fan_share=None, contended_share=None)


@dataclass(frozen=True, eq=False)
class FakeBox:
    """``per_switch`` GPUs below each switch; every link and uplink ``link`` B/s each way; latencies (s) inside and across."""

    per_switch: tuple[int, ...] = (4, 4)
    link: float = 50e9
    uplink: float = 50e9
    inside: float = 0.0
    across: float = 0.0
    slow_gpu: str | None = None
    ccl: CclSettings = field(default_factory=lambda: CclSettings(name="none"))
    name: str = "fake"

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(f"g{index}" for index in range(sum(self.per_switch)))

    @property
    def settings(self) -> SettingsSpec:
        return SettingsSpec(ccl=self.ccl)

    @property
    def links(self) -> dict[str, SimpleNamespace]:
        found = {}
        for gpu in self.gpus:
            speed = self.link / 2 if gpu == self.slow_gpu else self.link
            found[f"{gpu}.up"] = found[f"{gpu}.dn"] = SimpleNamespace(
                rate=rate(speed), read_share=None, fan_share=None, contended_share=None
            )
        for index in range(len(self.per_switch)):
            found[f"s{index}.up"] = found[f"s{index}.dn"] = SimpleNamespace(
                rate=rate(self.uplink), read_share=None, fan_share=None, contended_share=None
            )
        return found

    @property
    def spec(self) -> SimpleNamespace:
        port = SimpleNamespace(gen=5, width=16)
        nodes = {gpu: SimpleNamespace(kind="gpu", part=None, link=port, parent=f"s{self.switch_of(gpu)}") for gpu in self.gpus}
        for index in range(len(self.per_switch)):
            nodes[f"s{index}"] = SimpleNamespace(kind="switch", part=None, link=port, parent="cpu")
        nodes["cpu"] = SimpleNamespace(kind="socket", part="generic-amd", link=None, parent=None)
        return SimpleNamespace(nodes=nodes, peers=())

    hosts = ("",)

    def host_of(self, gpu: str) -> str:
        return ""

    def chain(self, gpu: str) -> tuple[str, ...]:
        return (gpu, f"s{self.switch_of(gpu)}")

    def socket_of(self, gpu: str) -> str:
        return "cpu"

    def numa_of(self, gpu: str) -> None:
        return None

    def trained_link(self, node: str) -> SimpleNamespace:
        return self.spec.nodes[node].link

    def path_type(self, a: str, b: str) -> str:
        return self.path(a, b).path_type

    def gpu_spec(self, node: str) -> SimpleNamespace:
        return SimpleNamespace(compute_capability="9.0")

    @property
    def collapses(self) -> dict[str, object]:
        return {}

    def capacities(self) -> dict[str, float]:
        return {name: capacity.rate.value for name, capacity in self.links.items()}

    def switch_of(self, gpu: str) -> int:
        rest = int(gpu[1:])
        for index, count in enumerate(self.per_switch):
            if rest < count:
                return index
            rest -= count
        raise AssertionError(gpu)

    def kernel_rate(self, gpu: str) -> None:
        return None

    def path(self, a: str, b: str, *, gpus: int | None = None, access: str = "write") -> SimpleNamespace:
        first, second = self.switch_of(a), self.switch_of(b)
        near = first == second
        links = (f"{a}.up", f"{b}.dn") if near else (f"{a}.up", f"s{first}.up", f"s{second}.dn", f"{b}.dn")
        return SimpleNamespace(
            src=a,
            dst=b,
            links=links,
            path_type="PIX" if near else "PHB",
            transport="P2P",
            latency=seconds(self.inside if near else self.across),
            flow_rate=None,
            crosses_socket=False,
            access=access,
            network=None,
        )

    route = path
    sm_route = path

    def transport(self, a: str, b: str, *, gpus: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(kind="P2P", reason="test", evidence="nominal")

    def but(self, **changes: object) -> FakeBox:
        return replace(self, **changes)  # type: ignore[arg-type]
