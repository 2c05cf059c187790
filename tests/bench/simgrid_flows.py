"""The same flows in SimGrid, for the side-by-side bench: ``python simgrid_flows.py CASE`` prints seconds and makespan as JSON.

Pure max-min sharing: network model CM02, no latency, bandwidth factor 1, no cross traffic.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

RATE = 50e9


def flows_of(case: str) -> tuple[int, int, list[list[tuple[int, int, int]]]]:
    """Endpoints, endpoints a switch, and rounds of (source, target, bytes); a round starts when the one before has ended."""
    if case == "ring-8":
        return 8, 4, [[(i, (i + 1) % 8, 8_000_000) for i in range(8)]] * 14
    kind, _, number = case.partition("-")
    count = int(number)
    local = 4 if count == 8 else 8
    if kind == "equal":
        return count, local, [[(i, j, 1_000_000) for i in range(count) for j in range(count) if i != j]]
    if kind == "different":
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        return count, local, [[(i, j, different(place)) for place, (i, j) in enumerate(pairs)]]
    if kind == "shifts":  # sixteen shifts at once, all sizes different
        pairs = [(i, (i + shift) % count) for shift in range(1, 17) for i in range(count)]
        return count, local, [[(i, j, different(place)) for place, (i, j) in enumerate(pairs)]]
    raise ValueError(case)


def different(place: int) -> int:
    """One to two MB, all different, in no order (multiples of the golden ratio)."""
    return 1_000_000 + int(1_000_000 * (place * 0.6180339887498949 % 1.0))


def main(case: str) -> None:
    """Run ``case``; only the simulation is timed, not the platform."""
    import simgrid as sg

    count, local, rounds = flows_of(case)
    settings = ("network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/bandwidth-factor:1")
    engine = sg.Engine(["sim", *[f"--cfg={item}" for item in settings], "--cfg=network/latency-factor:1", "--log=root.thres:error"])
    zone = sg.NetZone.create_full_zone("zone")

    def link(name: str) -> Any:
        return sg.LinkInRoute(zone.create_link(name, RATE).seal())

    hosts = [zone.create_host(f"h{index}", 1e9) for index in range(count)]
    ports = [(link(f"h{index}.up"), link(f"h{index}.dn")) for index in range(count)]
    uplinks = [(link(f"s{index}.up"), link(f"s{index}.dn")) for index in range(count // local)]
    for source, target in {(source, target) for flows in rounds for source, target, _ in flows}:
        a, b = source // local, target // local
        middle = [] if a == b else [uplinks[a][0], uplinks[b][1]]
        ends = hosts[source].netpoint, hosts[target].netpoint
        zone.add_route(*ends, None, None, [ports[source][0], *middle, ports[target][1]], False)
    zone.seal()

    def actor() -> None:
        for flows in rounds:
            sg.Comm.wait_all([sg.Comm.sendto_async(hosts[source], hosts[target], size) for source, target, size in flows])

    sg.Actor.create("all", hosts[0], actor)
    begun = time.perf_counter()
    engine.run()
    sys.stdout.write(json.dumps({"seconds": time.perf_counter() - begun, "makespan": sg.Engine.clock}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
