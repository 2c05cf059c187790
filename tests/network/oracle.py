"""Max-min sharing and the fluid event loop in exact rational arithmetic, written for clarity: the tests' other opinion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
