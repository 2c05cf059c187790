"""Copies between GPUs that contradict the links, peer access, or each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pcie_sim.doctor.copying import Rates, copies, matrices, numbers, place
from pcie_sim.doctor.exam import UNPRICED, Exam, finding
from pcie_sim.doctor.registry import check
from pcie_sim.doctor.wires import parts_text, payload
from pcie_sim.importers.relate import RelatedMatrix
from pcie_sim.results.finding import Finding
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.units import counted, format_rate, format_time

SLOW = 0.65
"""Copies below this share of what the links give are too slow: published boxes reach 0.84 and more inside a socket, 0.73 across."""
ABOVE = 1.12
"""More than the payload rate of the links on the way: another tree, or links wider than described."""
SAME = 0.10
STAGED_LATENCY = 8e-6
"""A small write to a peer takes 0.4 to 2 us by peer-to-peer and 10 to 30 us by host memory (p2pBandwidthLatencyTest)."""
UNEVEN = 1.25
BOTH_WAYS = 1.35
"""Both ways at once reach nearly twice one way on full-duplex links; 50 against 103 GB/s is what ACS redirect was seen to leave."""
_TEST = "p2pBandwidthLatencyTest (CUDA samples) or nvbandwidth"


def _median(rates: Rates) -> float:
    return statistics.median(rates.values())


@check("copy-rates", "copies reach what their links carry", needs=_TEST)
def copy_rates(exam: Exam) -> list[Finding] | None:
    """Copies of one pair at a time against the payload rate of the links on their way: too slow, too fast, slow GPUs, one-way links."""
    seen = [one for one in copies(exam) if numbers(one)]
    if not seen:
        return None
    found: list[Finding] = []
    granted = [one for one in seen if one.matrix.p2p is not False]
    for one in granted[:4]:
        found += _slow(exam, one)
    for one in seen[:8]:
        found += _above(exam, one)
        found += _uneven(one)
    for one in [*matrices(exam, "bandwidth", p2p=True, bidirectional=True), *matrices(exam, "bandwidth", p2p=None, bidirectional=True)]:
        found += _both_ways(exam, one, granted)
    return _unique(found)


def _unique(found: Sequence[Finding]) -> list[Finding]:
    """One finding of each title: matrices of one file say the same thing more than once."""
    kept: dict[str, Finding] = {}
    for item in found:
        kept.setdefault(item.title, item)
    return list(kept.values())


def _slow(exam: Exam, one: RelatedMatrix) -> list[Finding]:
    rates = numbers(one)
    if _refused(exam, one):
        return []  # host-staged whatever the title says: p2p-driver and peer-latency tell
    shares = {pair: rate / best for pair, rate in rates.items() if (best := exam.copy_rate(pair))}
    slow = {pair: share for pair, share in shares.items() if share < SLOW}
    if not slow:
        return []
    guilty = [gpu for gpu in exam.box.gpus if _all_slow(gpu, shares)]
    everyone = len(slow) > 0.8 * len(shares)
    whose = [] if everyone or len(guilty) == len(exam.box.gpus) else guilty
    pairs = [pair for pair in slow if not whose or set(pair) & set(whose)]
    middle = statistics.median(rates[pair] for pair in pairs)
    wanted = statistics.median(best for pair in pairs if (best := exam.copy_rate(pair)))
    where = exam.names(whose) if whose else ("all pairs" if everyone else f"{len(slow)} of {len(shares)} pairs")
    share = f"{middle / wanted:.0%}"
    evidence = [f"{place(one)}: copies of {where} reach {format_rate(middle)} (median), their links carry {format_rate(wanted)}: {share}"]
    like = _like(exam, middle)
    if like is not None:
        evidence.append(f"that is what a link of {parts_text(like)} carries ({format_rate(payload(exam, like))})")
    if not whose and not everyone:
        evidence.append("pairs: " + ", ".join(f"{a}-{b} {format_rate(rates[a, b])}" for a, b in list(slow)[:6]))
    advice = ["read the links under load: `sudo lspci -vvv` (LnkSta) while a copy runs"]
    if like is not None and like.gen < max(exam.box.gpu_spec(gpu).pcie.gen for gpu in exam.box.gpus):
        advice.append("BIOS: slot speed; riser and cable quality (corrected errors in dmesg)")
    if exam.box.settings.acs == "off" and any(exam.box.path_type(a, b) in ("PIX", "PXB") for a, b in pairs):
        advice.append("ACS redirect: ACSCtl of the switch ports in `sudo lspci -vvv`")
    title = f"copies of {where} are far below their links"
    fixed = wanted / middle - 1
    cost = f"bulk transfers take {fixed:+.0%} longer than on these links; small messages: {UNPRICED}"
    return [finding("copy-rates", title, "problem", evidence, cost=cost, advice=advice, nodes=[gpu for pair in pairs for gpu in pair])]


def _refused(exam: Exam, one: RelatedMatrix) -> bool:
    """Peer access is known to be refused: the file's own connectivity matrix, or the box's settings."""
    access = [other for other in exam.related.matrices if other.matrix.kind == "peer_access" and other.source == one.source]
    said = [value for other in access for row in other.matrix.cells for value in row if value == 0]
    return bool(said) or exam.box.settings.p2p == "off"


def _all_slow(gpu: str, shares: Rates) -> bool:
    mine = [share for pair, share in shares.items() if gpu in pair]
    others = [share for pair, share in shares.items() if gpu not in pair]
    return bool(mine) and bool(others) and statistics.median(mine) < SLOW <= statistics.median(others)


def _like(exam: Exam, rate: float) -> PcieLink | None:
    """The PCIe link that carries about ``rate`` (0.75 to 1.02 of its payload): the widest such."""
    fits = [
        (width, link)
        for gen in range(1, 6)
        for width in (4, 8, 16)
        if 0.75 <= rate / payload(exam, link := PcieLink.model_validate({"gen": gen, "width": width})) <= 1.02
    ]
    return max(fits, key=lambda item: item[0])[1] if fits else None


def _above(exam: Exam, one: RelatedMatrix) -> list[Finding]:
    rates = {pair: rate for pair, rate in numbers(one).items() if exam.box.path_type(*pair) not in ("NVL", "NET")}
    over = {pair: (rate, best) for pair, rate in rates.items() if (best := exam.wire_rate(pair)) and rate > ABOVE * best}
    if not over:
        return []
    (a, b), (rate, best) = max(over.items(), key=lambda item: item[1][0] / item[1][1])
    evidence = [
        f"{place(one)}: {counted(len(over), 'pair')} of {len(rates)} copy faster than the links of the tree allow, most {a}-{b}: "
        f"{format_rate(rate)} against {format_rate(best)}",
        "no copy is faster than its links: a link of this tree is narrower or slower than the box's, or an NVLink is missing",
    ]
    advice = ("correct the links in the topology file (`sudo lspci -vvv` of the box under load), or the GPU model",)
    title = "copies faster than the tree's links"
    return [
        finding(
            "copy-rates",
            title,
            "problem",
            evidence,
            cost="predictions for this tree are too slow",
            advice=advice,
            nodes=[g for p in over for g in p],
        )
    ]


def _uneven(one: RelatedMatrix) -> list[Finding]:
    rates = numbers(one)
    odd = {pair: rate / back for pair, rate in rates.items() if (back := rates.get((pair[1], pair[0]))) and rate > UNEVEN * back}
    if not odd:
        return []
    (a, b), ratio = max(odd.items(), key=lambda item: item[1])
    evidence = [
        f"{place(one)}: {counted(len(odd), 'pair')} copy at two speeds, most {a} -> {b}: {format_rate(rates[a, b])}, "
        f"back {format_rate(rates[b, a])} ({ratio:.2g} times)",
    ]
    advice = ("PCIe links are equally fast both ways: look for other traffic during the test, or a bad cable (corrected errors)",)
    title = "copies are faster one way than back"
    return [finding("copy-rates", title, "problem", evidence, cost=UNPRICED, advice=advice, nodes=[gpu for pair in odd for gpu in pair])]


def _both_ways(exam: Exam, one: RelatedMatrix, single: Sequence[RelatedMatrix]) -> list[Finding]:
    """Both ways together hardly more than one way, where the links are full duplex."""
    if not single or _refused(exam, one):
        return []
    both, way = numbers(one), numbers(single[0])
    ratios = {
        pair: rate / way[pair]
        for pair, rate in both.items()
        if pair in way and (exam.copy_rate(pair, both=True) or 0) > 1.6 * (exam.copy_rate(pair) or 1e99)
    }
    low = {pair: ratio for pair, ratio in ratios.items() if ratio < BOTH_WAYS}
    if not low or len(low) < 0.3 * len(ratios):
        return []
    pair = min(low, key=lambda key: low[key])
    evidence = [
        f"{place(one)}: both ways at once {counted(len(low), 'pair')} of {len(ratios)} reach hardly more than one way, like "
        f"{pair[0]}-{pair[1]}: {format_rate(both[pair])} against {format_rate(way[pair])}; full-duplex links give nearly twice",
    ]
    same = any(exam.box.path_type(*pair) in ("PIX", "PXB") for pair in low)
    advice = ["ACS redirect sends both ways over one uplink: ACSCtl in `sudo lspci -vvv`"] if same else []
    advice.append(
        "the root complex or chipset may share one path between the two ways: then `half_duplex: true` at the node in the topology file"
    )
    costs = exam.costs(exam.set(acs="off"), exam.set(acs="on")) if same and exam.box.settings.acs == "off" else ()
    return [
        finding(
            "copy-rates",
            "copies both ways at once share one path",
            "problem",
            evidence,
            costs=costs,
            advice=advice,
            nodes=[g for p in low for g in p],
        )
    ]


@check(
    "peer-latency",
    "peer access, where it is granted, is really used",
    needs="p2pBandwidthLatencyTest (its matrices with P2P enabled and disabled)",
)
def peer_latency(exam: Exam) -> list[Finding] | None:
    """Latencies and rates that are the same with and without peer access, or as slow as host memory: not really peer-to-peer."""
    fast = [one for p2p in (True, None) for one in matrices(exam, "latency", p2p=p2p) if numbers(one)]
    on = [one for one in matrices(exam, "bandwidth", p2p=True) if numbers(one)]
    off = [one for one in matrices(exam, "bandwidth", p2p=False) if numbers(one)]
    if not fast and not (on and off):
        return None
    refused = exam.box.settings.p2p == "off" or any(_refused(exam, one) for one in [*fast, *on])
    evidence: list[str] = []
    nodes: list[str] = []
    for one in fast[:2]:
        late = {pair: time for pair, time in numbers(one).items() if time > STAGED_LATENCY}
        if late:
            took = f"{format_time(_median(late))} (median of {counted(len(late), 'pair')} of {len(numbers(one))})"
            evidence.append(
                f"{place(one)}: with P2P enabled a small write takes {took}: host memory takes 10 to 30 us, peer-to-peer 0.4 to 2"
            )
            nodes += [gpu for pair in late for gpu in pair]
    if on and off and (evidence or not fast):
        with_, without = numbers(on[0]), numbers(off[0])
        same = [pair for pair, rate in with_.items() if pair in without and abs(rate / without[pair] - 1) < SAME]
        if same and len(same) > 0.8 * len(with_):
            rates = f"{format_rate(_median(with_))} and {format_rate(_median(without))}"
            evidence.append(f"{place(on[0])}: copies with P2P enabled and disabled are equally fast ({rates})")
            nodes += [gpu for pair in same for gpu in pair]
    if not evidence or refused:
        return []
    late_costs = exam.costs(exam.opened(), exam.set(p2p="off"))
    advice = (
        "`nvidia-smi topo -p2p r` and w: what the driver grants; then see p2p-driver",
        "say `p2p: off` in the topology file, so that predictions are those of host-staged traffic",
    )
    title = "peer access is on, but traffic goes as through host memory"
    return [finding("peer-latency", title, "problem", evidence, costs=late_costs, advice=advice, nodes=nodes)]
