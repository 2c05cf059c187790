"""Max-min sharing and the fluid event loop in exact rational arithmetic, written for clarity: the tests' other opinion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


def exact_rates(
    capacity: Sequence[Fraction], routes: Sequence[Sequence[int]], caps: Mapping[int, Fraction] | None = None
) -> list[Fraction]:
    """Progressive filling, one flow per route."""
    limit = dict(caps or {})
    rates: dict[int, Fraction] = {}
    while len(rates) < len(routes):
        candidates: list[Fraction] = [limit[flow] for flow in range(len(routes)) if flow not in rates and flow in limit]
        shares: dict[int, Fraction] = {}
        for link, size in enumerate(capacity):
            taken = sum((rates[flow] * routes[flow].count(link) for flow in rates), Fraction(0))
            users = sum(routes[flow].count(link) for flow in range(len(routes)) if flow not in rates)
            if users:
                shares[link] = (size - taken) / users
        level = min([*candidates, *shares.values()])
        full = {link for link, share in shares.items() if share == level}
        for flow in range(len(routes)):
            if flow not in rates and (full & set(routes[flow]) or limit.get(flow) == level):
                rates[flow] = level
    return [rates[flow] for flow in range(len(routes))]


def exact_finish(capacity: Sequence[Fraction], flows: Sequence[tuple[Fraction, Sequence[int], Fraction]]) -> list[Fraction]:
    """Finish times of flows (start, route, bytes)."""
    left = {index: size for index, (_, _, size) in enumerate(flows)}
    done: dict[int, Fraction] = {}
    now = Fraction(0)
    while len(done) < len(flows):
        moving = [index for index in left if flows[index][0] <= now]
        for index in [index for index in moving if left[index] == 0]:
            done[index] = now
            del left[index]
        moving = [index for index in moving if index in left]
        later = [flows[index][0] - now for index in left if flows[index][0] > now]
        if not moving:
            if later:
                now += min(later)
            continue
        rates = dict(zip(moving, exact_rates(capacity, [list(flows[index][1]) for index in moving]), strict=True))
        step = min([left[index] / rates[index] for index in moving] + later)
        for index in moving:
            left[index] -= rates[index] * step
        now += step
    return [done[index] for index in range(len(flows))]


@dataclass(frozen=True)
class ExactFlow:
    """One flow; ``cap`` None is none, ``previous`` -1 is none."""

    route: tuple[int, ...]
    size: Fraction
    start: Fraction = Fraction(0)
    latency: Fraction = Fraction(0)
    cap: Fraction | None = None
    deps: tuple[int, ...] = ()
    previous: int = -1


def exact_run(capacity: Sequence[Fraction], flows: Sequence[ExactFlow]) -> list[Fraction]:
    """Finish times with start-ups, caps, dependencies (on flows listed before) and streams, moment by moment."""
    done: dict[int, Fraction] = {}
    left = {index: flow.size for index, flow in enumerate(flows)}
    now = Fraction(0)
    while len(done) < len(flows):
        later: list[Fraction] = []
        moving: list[int] = []
        changed = True
        while changed:
            changed, later, moving = False, [], []
            for index, flow in enumerate(flows):
                if index in done or any(dep not in done for dep in flow.deps):
                    continue
                begins = max([flow.start, *(done[dep] for dep in flow.deps)]) + flow.latency
                if begins > now:
                    later.append(begins - now)
                elif flow.previous >= 0 and flow.previous not in done:
                    continue
                elif left[index] == 0:
                    done[index] = now
                    changed = True
                else:
                    moving.append(index)
        if not moving and not later:
            break
        caps = {place: cap for place, index in enumerate(moving) if (cap := flows[index].cap) is not None}
        rates = exact_rates(capacity, [flows[index].route for index in moving], caps)
        step = min([left[index] / rate for index, rate in zip(moving, rates, strict=True)] + later)
        for index, rate in zip(moving, rates, strict=True):
            left[index] -= rate * step
        now += step
    return [done[index] for index in range(len(flows))]
