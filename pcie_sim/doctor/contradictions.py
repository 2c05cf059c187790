"""Copies between GPUs that contradict the links, peer access, or each other."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from pcie_sim.doctor.copying import SAME, Rates, copies, matrices, numbers, place, staged
from pcie_sim.doctor.exam import OPEN, UNPRICED, Exam, cost_text, finding
from pcie_sim.doctor.registry import check
from pcie_sim.doctor.seen import NEAR, meeting, redirect_ruled_out
from pcie_sim.doctor.wires import parts_text, payload
from pcie_sim.importers.relate import RelatedMatrix
from pcie_sim.results.finding import Cost, Finding
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.topology import LEVELS
from pcie_sim.units import counted, format_rate

SLOW = 0.65
"""Copies below this share of what the links give are too slow: published boxes reach 0.84 and more inside a socket, 0.73 across."""
ABOVE = 1.12
"""More than the payload rate of the links on the way: another tree, or links wider than described."""
UNEVEN = 1.25
BOTH_WAYS = 1.35
"""Both ways at once reach nearly twice one way on full-duplex links; 50 of 103 GB/s is what ACS redirect was seen to leave."""
_TEST = "p2pBandwidthLatencyTest (CUDA samples) or nvbandwidth"
_OF_A_GROUP = 0.3
"""Share of the pairs of one switch (or one path type) from which on slow ones are no accident."""


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
        found += _uneven(exam, one)
    for one in [*matrices(exam, "bandwidth", p2p=True, bidirectional=True), *matrices(exam, "bandwidth", p2p=None, bidirectional=True)]:
        found += _both_ways(exam, one, granted)
    return _unique(found)


def _unique(found: Sequence[Finding]) -> list[Finding]:
    """One finding of each title: matrices of one file say the same thing more than once."""
    kept: dict[str, Finding] = {}
    for item in found:
        kept.setdefault(item.title, item)
    return list(kept.values())


def _direct(exam: Exam, one: RelatedMatrix) -> Rates:
    """The rates of pairs that are not staged in host memory: what those are slow by, peer-latency tells."""
    seen = staged(exam)
    return {pair: rate for pair, rate in numbers(one).items() if seen is None or pair not in seen.pairs}


def _slow(exam: Exam, one: RelatedMatrix) -> list[Finding]:
    rates = _direct(exam, one)
    if _refused(exam, one):
        return []  # host-staged whatever the title says: p2p-driver and peer-latency tell
    shares = {pair: rate / best for pair, rate in rates.items() if (best := exam.copy_rate(pair))}
    # slow one way only is no link's state: _uneven tells
    slow = {pair: share for pair, share in shares.items() if share < SLOW and shares.get((pair[1], pair[0]), share) <= UNEVEN * share}
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
    alike = everyone and _as_without(exam, one, pairs)
    if alike:
        evidence.append("they are as fast with P2P disabled: staged in host memory, or over a link that bounds both")
    like = None if alike else _like(exam, middle)
    if like is not None:
        evidence.append(f"that is what a link of {parts_text(like)} carries ({format_rate(payload(exam, like))})")
    if not whose and not everyone:
        evidence.append("pairs: " + ", ".join(f"{a}-{b} {format_rate(rates[a, b])}" for a, b in list(slow)[:6]))
    advice = ["`nvidia-smi topo -p2p r`: what the driver grants; virtual machines and IOMMU may turn copies round"] if alike else []
    advice.append("read the links under load: `sudo lspci -vvv` (LnkSta) while a copy runs")
    if like is not None and like.gen < max(exam.box.gpu_spec(gpu).pcie.gen for gpu in exam.box.gpus):
        advice.append("BIOS: slot speed; riser and cable quality (corrected errors in dmesg)")
    if exam.box.settings.acs == "off" and any(exam.box.path_type(a, b) in NEAR for a, b in pairs) and not redirect_ruled_out(exam):
        advice.append("ACS redirect: ACSCtl of the switch ports in `sudo lspci -vvv`")
    if staged(exam) is None:
        advice.append("copies that are staged in host memory look alike: p2pBandwidthLatencyTest's latencies tell (0.4 to 2 us by peers)")
    title = f"copies of {where} are far below their links"
    fixed = wanted / middle - 1
    cost = f"bulk transfers take {fixed:+.0%} longer than on these links; small messages: {UNPRICED}"
    return [finding("copy-rates", title, "problem", evidence, cost=cost, advice=advice, nodes=[gpu for pair in pairs for gpu in pair])]


def _as_without(exam: Exam, one: RelatedMatrix, pairs: Sequence[tuple[str, str]]) -> bool:
    """Copies of these pairs are as fast with peer access disabled."""
    for other in matrices(exam, "bandwidth", p2p=False):
        rates, without = numbers(one), numbers(other)
        if one.matrix.p2p is True and pairs and all(pair in without and abs(rates[pair] / without[pair] - 1) < SAME for pair in pairs):
            return True
    return False


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


def _uneven(exam: Exam, one: RelatedMatrix) -> list[Finding]:
    rates = _direct(exam, one)
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
    """Both ways together hardly more than one way, where the links are full duplex; judged switch by switch, and by path type between."""
    if not single or _refused(exam, one):
        return []
    both, way = _direct(exam, one), numbers(single[0])
    groups: dict[tuple[str, str | None], Rates] = {}
    for pair, rate in both.items():
        alone = exam.copy_rate(pair)
        # what is slow one way already is so for another reason
        if pair in way and alone and way[pair] >= SLOW * alone and (exam.copy_rate(pair, both=True) or 0) > 1.6 * alone:
            kind = exam.box.path_type(*pair)
            groups.setdefault((kind, meeting(exam, *pair) if kind in NEAR else None), {})[pair] = rate / way[pair]
    near: Rates = {}
    far: Rates = {}
    for (level, _node), ratios in groups.items():
        low = {pair: ratio for pair, ratio in ratios.items() if ratio < BOTH_WAYS}
        if low and len(low) >= _OF_A_GROUP * len(ratios):
            (near if level in NEAR else far).update(low)
    judged = {pair: rate for ratios in groups.values() for pair, rate in ratios.items()}
    return [_shared(exam, one, way, low, judged) for low in (near, far) if low]


def _shared(exam: Exam, one: RelatedMatrix, way: Rates, low: Rates, judged: Rates) -> Finding:
    """One finding of pairs that share one path both ways, all below switches or none of them."""
    both, box = numbers(one), exam.box
    below = exam.box.path_type(*next(iter(low))) in NEAR
    pair = min(low, key=lambda key: low[key])
    evidence = [
        f"{place(one)}: both ways at once {counted(len(low), 'pair')} of {len(judged)} reach hardly more than one way, like "
        f"{pair[0]}-{pair[1]}: {format_rate(both[pair])} against {format_rate(way[pair])}; full-duplex links give nearly twice",
    ]
    fine = [both[key] for key, ratio in judged.items() if ratio >= BOTH_WAYS]
    if fine:
        evidence.append(f"the other pairs reach {format_rate(statistics.median(fine))} both ways (median)")
    suspect = below and not redirect_ruled_out(exam)
    title = "copies both ways at once share one path"
    advice: list[str] = []
    costs: tuple[Cost, ...] = ()
    words: str | None = ""
    if below:
        same = [key for key in exam.pairs if box.path_type(*key) in NEAR]
        evidence.append(f"{len(low)} of {len(same)} ordered pairs below one switch are so: as if they went up its uplink and down again")
        title += " between GPUs of one switch"
    if suspect:
        title += ", as with ACS redirect on"
        advice.append("ACS redirect sends both ways over one uplink: ACSCtl in `sudo lspci -vvv`")
        costs = exam.costs(exam.set(acs="off"), exam.set(acs="on")) if box.settings.acs == "off" else ()
        if costs and len(low) < len(same):
            words = f"if all ports redirected (upper bound): {cost_text(costs)}"
    elif below:
        evidence.append("ACS redirect is off at all ports that the files show")
        advice.append("the switch's partitions and firmware: something sends this traffic up its uplink")
    if not below or len(low) == len(judged):
        advice.append(
            "the root complex or chipset may share one path between the two ways: then `half_duplex: true` at the node in the topology file"
        )
    nodes = [gpu for key in low for gpu in key]
    return finding("copy-rates", title, "problem", evidence, costs=costs, cost=words, advice=advice, nodes=nodes)


@check(
    "peer-latency",
    "peer access, where it is granted, is really used",
    needs="p2pBandwidthLatencyTest (its matrices with P2P enabled and disabled)",
)
def peer_latency(exam: Exam) -> list[Finding] | None:
    """Latencies and rates that are the same with and without peer access, or as slow as host memory: not really peer-to-peer."""
    seen = staged(exam)
    if seen is None:
        return None
    asked = [one for kind in ("latency", "bandwidth") for p2p in (True, None) for one in matrices(exam, kind, p2p=p2p)]
    if not seen.evidence or exam.box.settings.p2p == "off" or any(_refused(exam, one) for one in asked):
        return []
    evidence = list(seen.evidence)
    if not seen.sure:
        evidence.append("no file has latencies: a link slower than host memory would look alike")
    costs, words = _staged_costs(exam, seen.pairs)
    advice = (
        "`nvidia-smi topo -p2p r` and w: what the driver grants; then see p2p-driver",
        "say `p2p: off` in the topology file, so that predictions are those of host-staged traffic",
    )
    title = "peer access is on, but traffic goes as through host memory"
    nodes = [gpu for pair in sorted(seen.pairs) for gpu in pair]
    return [finding("peer-latency", title, "problem", evidence, costs=costs, cost=words, advice=advice, nodes=nodes)]


def _staged_costs(exam: Exam, pairs: Collection[tuple[str, str]]) -> tuple[tuple[Cost, ...], str]:
    """What staging ``pairs`` costs: all of them, or all beyond a path type; else that of all pairs, and that it is so."""
    direct = {pair for pair in exam.pairs if exam.box.path_type(*pair) != "NVL"}
    whole = exam.costs(exam.opened(), exam.set(p2p="off"))
    if set(pairs) >= direct:
        return whole, ""
    for level in ("PIX", "PXB", "PHB"):
        if set(pairs) == {pair for pair in direct if LEVELS.index(exam.box.path_type(*pair)) > LEVELS.index(level)}:
            return exam.costs(exam.opened(), exam.set(p2p="on", env={**OPEN, "NCCL_P2P_LEVEL": level})), ""
    return whole, f"if all pairs were staged: {cost_text(whole)}"
