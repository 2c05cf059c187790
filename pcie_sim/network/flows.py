"""The flows file: the bare event engine on explicit links, routes and flows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.network.events import FlowRun, FlowSet
from pcie_sim.network.sharing import INFINITY
from pcie_sim.network.shorten import Short, shortened
from pcie_sim.results.timing import FlowCase, FlowsResult
from pcie_sim.specs.base import plain_text
from pcie_sim.specs.loader import load_yaml
from pcie_sim.units import parse_bytes, parse_rate, parse_time

MAX_COMPLETIONS = 5_000_000
"""Most completions (rounds x flows) that one case reports."""
MAX_CASES = 10_000
MOST_CROSSINGS, MOST_ALIKE = 5_000_000, 50_000_000
"""Most links that the different flows of a file cross together (some 20 s); the second where they are alike enough to go in groups."""
_UNITS = {"bandwidth": ("B/s",), "size": ("B", "bytes", "byte"), "time": ("s", "seconds", "second")}
MAX_SIZE, MAX_TIME, MAX_RATE, MIN_RATE = 1e18, 1e9, 1e18, 1e-3


def load_flows(path: str | os.PathLike[str]) -> FlowsResult:
    """Run the flows file at ``path`` (YAML, or JSON when it ends in .json).

    Raises:
        InputError: the file cannot be read, or :func:`run_flows` refuses its content.
    """
    return run_flows(load_yaml(path), source=os.fspath(path))


def run_flows(data: Any, *, source: str = "<flows>") -> FlowsResult:
    """Run every case of ``data`` (the content of a flows file).

    ``cases`` is a list of ``{id, links: {name: B/s}, routes: {"src>dst": [link, ...]}, flows: [[start_s, src, dst, bytes],
    ...], rounds_repeat}``. Starts are relative to the round; a round begins when the one before has ended; reported
    finishes are absolute, round after round. Numbers are SI; text such as ``50GB/s``, ``1MB`` and ``5us`` is understood. A
    link that stands twice in a route is charged twice. Other keys are ignored.

    Args:
        source: the file's name, for messages.

    Raises:
        InputError: names the case and what is wrong: no cases, a case without id, links, routes or flows, an unknown link or
            route, a capacity that is not above zero, a negative or non-finite number, a name with control characters, more than
            5 million completions, or different flows that cross more than 5 million links together (50 where few sizes differ).
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{source}: expected keys and values with a list of cases, like 'cases: [{{id: ...}}]'")
    _check_units(data.get("units"), source)
    cases = data.get("cases")
    if not isinstance(cases, list) or not cases:
        raise InputError(f"{source}: cases: expected a list with at least one case")
    if len(cases) > MAX_CASES:
        raise InputError(f"{source}: cases: {len(cases)} is too many; at most {MAX_CASES}")
    seen: set[str] = set()
    found: list[FlowCase] = []
    completions, crossings = 0, 0.0
    for place, case in enumerate(cases):
        reader = _CaseReader(case, source, place, seen)
        found.append(reader.run(1.0 - crossings))
        crossings += reader.crossings
        completions += len(found[-1].finish)
        if completions > MAX_COMPLETIONS:
            raise InputError(f"{source}: all cases together have more than {MAX_COMPLETIONS} completions; split the file")
    return FlowsResult(cases=tuple(found))


def _check_units(units: Any, source: str) -> None:
    if units is None:
        return
    if not isinstance(units, Mapping):
        raise InputError(f"{source}: units: expected a mapping like {{bandwidth: B/s, size: B, time: s}}")
    unknown = next((key for key in units if key not in _UNITS), None)
    if unknown is not None:
        raise InputError(f"{source}: units: unknown key {str(unknown)[:30]!r}; it takes bandwidth, size and time, each in SI")
    for key, allowed in _UNITS.items():
        if key in units and units[key] not in allowed:
            raise InputError(f"{source}: units.{key} {str(units[key])[:30]!r}: only {allowed[0]} is understood; write the numbers in SI")


class _CaseReader:
    """One case: its checks and its run. ``where`` opens every message."""

    def __init__(self, case: Any, source: str, place: int, seen: set[str]) -> None:
        self.where = f"{source}: case {place + 1}"
        if not isinstance(case, Mapping):
            raise self._bad("", "expected keys and values with id, links, routes and flows")
        name = case.get("id")
        if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip() or len(str(name)) > 200:
            raise self._bad("id", "expected a short text")
        self.id = self._plain("id", str(name))
        self.where = f"{source}: case {self.id[:60]!r}"
        if self.id in seen:
            raise self._bad("id", "stands twice; give every case its own")
        seen.add(self.id)
        self.case = case
        self.crossings = 0.0
        """What the case took of the crossings that a file may have, as a share."""

    def _bad(self, key: str, what: str) -> InputError:
        return InputError(f"{self.where}: {key + ': ' if key else ''}{what}")

    def _plain(self, key: str, text: str) -> str:
        try:
            return plain_text(text)
        except ValueError as exc:
            raise self._bad(key, str(exc)) from exc

    def _shortened(self, flows: FlowSet, left: float) -> Short:
        """The flows without what changes nothing; refused where they cross more links than the share ``left`` of what a file may."""
        short = shortened(flows)
        most = MOST_ALIKE if short.alike else MOST_CROSSINGS
        self.crossings = short.crossings / most
        if self.crossings > left:
            raise self._bad(
                "flows",
                f"{len(short.copies):,} different flows cross {short.crossings:,} links together, more than the {most:,} of all cases; "
                f"shorten the routes or split the file",
            )
        return short

    def run(self, left: float = 1.0) -> FlowCase:
        """When the flows end; ``left`` is the share of the crossings of a file that other cases have not taken."""
        links = self._links()
        classes = self._routes(links)
        flows = self._flows(list(links.values()), classes)
        rounds = self._rounds(len(flows.size))
        begun = time.perf_counter()
        once: FlowRun = self._shortened(flows, left).run()
        finish: list[float] = []
        begins = 0.0
        for _ in range(rounds):
            finish.extend([begins + end for end in once.finish] if begins else once.finish)
            begins += once.makespan
        spent = time.perf_counter() - begun
        carried = {name: total * rounds for name, total in zip(links, flows.link_bytes(), strict=True)}
        return FlowCase(self.id, begins, tuple(finish), once.events * rounds, spent, carried)

    def _links(self) -> dict[str, float]:
        links = self.case.get("links")
        if not isinstance(links, Mapping) or not links:
            raise self._bad("links", "expected a mapping of link names to capacities in B/s")
        found: dict[str, float] = {}
        for name, value in links.items():
            self._plain("links", str(name))
            rate = self._number(f"links.{str(name)[:60]}", value, parse_rate)
            if not rate > 0:
                raise self._bad(f"links.{str(name)[:60]}", "a capacity must be above zero; leave a dead link out of the routes")
            if not MIN_RATE <= rate <= MAX_RATE:
                raise self._bad(f"links.{str(name)[:60]}", f"{value!r} B/s is out of range")
            found[str(name)] = rate
        return found

    def _routes(self, links: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        routes = self.case.get("routes")
        if not isinstance(routes, Mapping) or not routes:
            raise self._bad("routes", 'expected a mapping of "src>dst" to lists of links')
        number = {name: index for index, name in enumerate(links)}
        found: dict[str, tuple[int, ...]] = {}
        for name, route in routes.items():
            self._plain("routes", str(name))
            key = f"routes.{str(name)[:60]}"
            if not isinstance(name, str) or name.count(">") != 1 or not all(part.strip() for part in name.split(">")):
                raise self._bad(key, 'a route is called "src>dst"')
            if not isinstance(route, list) or not route:
                raise self._bad(key, "expected a list with at least one link")
            for link in route:
                if isinstance(link, list | dict) or str(link) not in number:
                    raise self._bad(key, f"unknown link {str(link)[:60]!r}; add it under links")
            source, target = (part.strip() for part in name.split(">"))
            found[f"{source}>{target}"] = tuple(number[str(link)] for link in route)
        return found

    def _flows(self, capacity: list[float], routes: Mapping[str, tuple[int, ...]]) -> FlowSet:
        rows = self.case.get("flows")
        if not isinstance(rows, list) or not rows:
            raise self._bad("flows", "expected a list of [start_s, src, dst, bytes]")
        class_of: dict[tuple[int, ...], int] = {}
        of_class: list[int] = []
        size: list[float] = []
        start: list[float] = []
        for place, row in enumerate(rows):
            key = f"flows[{place}]"
            if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != 4:
                raise self._bad(key, "expected [start_s, src, dst, bytes]")
            route = routes.get(f"{row[1]}>{row[2]}")
            if route is None:
                raise self._bad(key, f"unknown route {f'{row[1]}>{row[2]}'[:80]!r}; add it under routes")
            start.append(self._number(f"{key} start", row[0], parse_time, most=MAX_TIME))
            size.append(self._number(f"{key} bytes", row[3], parse_bytes, most=MAX_SIZE))
            of_class.append(class_of.setdefault(route, len(class_of)))
        return FlowSet(capacity, list(class_of), [INFINITY] * len(class_of), of_class, size, start)

    def _rounds(self, flows: int) -> int:
        rounds = self.case.get("rounds_repeat", 1)
        if rounds is None:
            return 1
        number = isinstance(rounds, int | float) and not isinstance(rounds, bool)
        if not number or not 1 <= rounds < INFINITY or rounds != rounds // 1:
            raise self._bad("rounds_repeat", "expected a whole number, 1 or more")
        if rounds * flows > MAX_COMPLETIONS:
            raise self._bad("rounds_repeat", f"too many rounds for {flows} flows: more than {MAX_COMPLETIONS} completions")
        return int(rounds)

    def _number(self, key: str, value: Any, parse: Any, *, most: float = INFINITY) -> float:
        if isinstance(value, str):
            try:
                number = float(parse(value))
            except InputError as exc:
                raise self._bad(key, str(exc)) from exc
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, f"expected a number, found {str(value)[:40]!r}")
        else:
            if isinstance(value, int) and abs(value) > 10**30:
                raise self._bad(key, "is out of range")
            number = float(value)
        if not math.isfinite(number) or number < 0:
            raise self._bad(key, f"{str(value)[:40]} is not a finite number of zero or more")
        if number > most:
            raise self._bad(key, f"{str(value)[:40]} is out of range (at most {most:g})")
        return number
