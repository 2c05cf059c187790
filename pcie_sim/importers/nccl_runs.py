"""One nccl-tests output as runs: what stands before a table, its rows, what stands after it. Several runs, noise and damage allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pcie_sim.importers.nccl_rows import HEADER, LIKE_ROW, MOST_DIGITS, Layout, TableRow, figures_of, head_of, layout_of, no_times, row_of
from pcie_sim.importers.nccl_text import LOG_HEAD, Notes, ccl_version, environment, library_version, public_text, strip_prefix
from pcie_sim.importers.source import SourceText

MAX_RANKS = 4096
MAX_RUNS = 1000
MAX_ROWS = 50_000
"""Rows of one file; each holds two figures."""
MAX_STREAMS = 64

EXECUTABLE = re.compile(
    r"(?<![A-Za-z0-9])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|reduce|send_?recv|gather|scatter|hypercube)_perf"
)
CONFIG = re.compile(r"#[ \t]{0,8}nThreads?:?[ \t]{1,8}[0-9]")
_SETTING = re.compile(
    r"(nThreads?|nGpus|minBytes|maxBytes|step:|warmup iters:|agg iters:|iters:|validation:|graph:|unalign:|Blocking Enabled:)"
    r"[ \t]{0,8}:?[ \t]{0,8}([0-9]{1,19})(\([a-z]{1,10}\))?"
)
STARTING = re.compile(r"Collective test (starting|concluded): ")
TESTS_VERSION = re.compile(
    r"nccl-tests version ([0-9.]{1,20})(?:[ \t]{1,8}nccl-headers=[0-9]{1,8})?(?:[ \t]{1,8}nccl-library=([0-9]{1,8}))?"
)
DEVICE = re.compile(
    r"Rank[ \t]{1,20}([0-9]{1,9})[ \t]{1,8}(?:Group[ \t]{1,8}[0-9]{1,9}[ \t]{1,8})?Pid[ \t]{1,12}[0-9]{1,10}[ \t]{1,8}"
    r"on[ \t]{1,40}([^\s]{1,255})[ \t]{1,8}device[ \t]{1,8}([0-9]{1,4})[ \t]{1,8}\[([0-9a-fA-FxX:.]{1,16})\][ \t]{0,8}(.{0,100})"
)
FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure [^\s]{0,80} '([^'\n]{0,160})|Test (timeout)|Test (failure) common|NCCL WARN (.{1,200})")
_NRANKS = re.compile(r"\bnranks[ =]([0-9]{1,7})\b", re.IGNORECASE)
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values[ \t]{0,8}:[ \t]{0,8}([0-9]{1,12})[ \t]{1,8}(OK|FAILED)")
_GLUED = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,3})?(?:e[+-][0-9]{1,2})?(?=[A-Za-z])")
_GRAPH_OPTION = re.compile(r"[ \t](?:-G|--cudagraph)[ =]{0,2}([0-9]{1,6})")
_GPUS_OPTION = re.compile(r"[ \t](?:-g|--ngpus)[ =]{0,2}([0-9]{1,6})")


@dataclass(frozen=True)
class Device:
    """A line of ``Using devices``. ``host`` only tells hosts apart; it is not stored further on."""

    rank: int
    host: str
    index: int
    bus: str
    name: str


@dataclass
class Run:
    """What one run of a test printed."""

    line: int
    executable: str | None = None
    tests_version: str | None = None
    library: tuple[str, str | None] | None = None
    """(version, CUDA version)."""
    rccl: bool = False
    config: dict[str, str] = field(default_factory=dict)
    command: dict[str, str] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    devices_seen: int = 0
    layout: Layout | None = None
    rows: list[TableRow] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    out_of_bounds: int = 0
    ranks_said: set[int] = field(default_factory=set)
    listed_in_part: bool = False
    """``devices`` need not name every rank (JSON)."""
    closed: bool = False
    cut_line: int | None = None
    """The row that is not whole."""
    joined: int = 0
    """Rows put together from pieces that log lines had broken apart."""

    @property
    def begun(self) -> bool:
        """Something besides the file's own noise is known."""
        return bool(self.config or self.devices_seen or self.layout or self.rows or self.executable)


class Runs:
    """Reads lines one by one; ``done()`` gives the runs."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.runs: list[Run] = []
        self._now = Run(0)
        self._single = "out"
        self._open: tuple[tuple[int, int, str], list[str], int] | None = None
        self._rows = 0

    def feed(self, text: str, number: int) -> None:
        """One line without launcher prefixes."""
        log = LOG_HEAD.search(text) if "NCCL " in text else None
        if log is not None:
            self._log(text, number)
            text = _before(text, log)
            if not text.strip():
                return
        bare = text.strip()
        if not bare:
            return
        if bare[0] == "#" or HEADER.search(bare):
            self._comment(text, bare, number)
            return
        head = head_of(text, self._now.layout or Layout())
        if head is not None:
            self._flush()
            self._row(head[:3], text[head[3] :], number, broken=log is not None)
        elif self._open is not None and (words := figures_of(text)) is not None:
            self._open[1].extend(words[: 24 - len(self._open[1])])
        else:
            self._other(text, bare, number)

    def done(self) -> list[Run]:
        """All runs that hold anything."""
        self._flush()
        self._next()
        return self.runs

    def _next(self, line: int = 0) -> None:
        if self._now.begun or self._now.failures:
            if len(self.runs) < MAX_RUNS:
                self.runs.append(self._now)
            else:
                self._notes.add("cut", f"more than {MAX_RUNS} runs: the rest is left out", self._now.line)
        self._now = Run(line)

    def _comment(self, text: str, bare: str, number: int) -> None:
        now = self._now
        if CONFIG.match(bare):
            if now.config or now.rows or now.devices_seen:
                self._restart(number)
            self._now.line = self._now.line or number
            for name, value, kind in _SETTING.findall(bare):
                self._now.config.setdefault(name.rstrip(":").replace(" ", "_"), value + kind)
        elif (match := TESTS_VERSION.search(bare)) is not None:
            if now.config or now.rows or now.tests_version:
                self._restart(number)
            self._now.line, self._now.tests_version = self._now.line or number, match.group(1)
            version = library_version(match.group(2)) if match.group(2) else None
            self._now.library = (version, None) if version else self._now.library
        elif (match := STARTING.search(bare)) is not None:
            name = EXECUTABLE.search(bare)
            if match.group(1) == "starting" and (now.config or now.rows or (now.executable and not now.tests_version)):
                self._restart(number)
            self._now.line = self._now.line or number
            if name is not None and self._now.executable is None:
                self._now.executable = name.group(1)
            if match.group(1) == "concluded":
                self._close()
        elif (match := DEVICE.search(bare)) is not None:
            self._device(match, number)
        elif HEADER.search(bare):
            self._header(text, number)
        else:
            self._remark_line(bare, number)

    def _remark_line(self, bare: str, number: int) -> None:
        if "-of-place" in bare or "in-place" in bare:
            self._single = "in" if "out-of-place" not in bare else "out"
        elif (match := _OUT_OF_BOUNDS.search(bare)) is not None:
            self._now.out_of_bounds += int(match.group(1)) if match.group(2) == "FAILED" else 0
            self._close()
        elif "Avg bus bandwidth" in bare:
            self._close()
        elif "Blocking Enabled" in bare:
            for name, value, _kind in _SETTING.findall(bare):
                self._now.config.setdefault(name.rstrip(":").replace(" ", "_"), value)
        elif "Reducing maxBytes" in bare:
            self._notes.add("note", "the test had too little GPU memory for the sizes asked for and stopped earlier", number)
        else:
            self._library(bare)

    def _header(self, text: str, number: int) -> None:
        self._flush()
        if self._now.closed:
            self._restart(number)
        layout = layout_of(text, self._single)
        if layout is not None:
            self._now.layout = layout
            if layout.extra:
                self._notes.add("ignored", "what stands before the column 'size' is not nccl-tests': left out", number)
        self._now.line = self._now.line or number

    def _device(self, match: re.Match[str], number: int) -> None:
        if self._now.rows or self._now.closed:
            self._restart(number)
        now = self._now
        now.devices_seen += 1
        if now.devices_seen > MAX_RANKS:
            return
        name = " ".join(match.group(5).split())
        now.devices.append(Device(int(match.group(1)), match.group(2), int(match.group(3)), match.group(4), name))
        now.line = now.line or number

    def _row(self, head: tuple[int, int, str], rest: str, number: int, *, broken: bool) -> None:
        if self._now.closed:
            self._restart(number)
        now = self._now
        now.line = now.line or number
        row = row_of(head, rest, now.layout or Layout(single=self._single), number)
        if not broken and no_times(rest) and (row is None or row.out is None or row.inside is None):
            what = "a row's times or bandwidths are" if row is None else "the times or bandwidths of half a row are"
            self._notes.add("ignored", f"{what} no numbers (nan or inf): left out", number)
            if row is None:
                return
        if row is not None and not row.cut and (row.inside is not None or not broken):
            self._add(row)
        elif broken or row is None:
            self._open = (head, rest.split()[:24], number)
        else:
            self._add(row)

    def _add(self, row: TableRow | None) -> None:
        if row is None:
            return
        if row.cut:
            self._now.cut_line = self._now.cut_line or row.line
        self._rows += 1
        if self._rows > MAX_ROWS:
            self._notes.add("cut", f"more than {MAX_ROWS:,} rows: the rest is left out", row.line)
            return
        self._now.rows.append(row)

    def _flush(self) -> None:
        """End a row that came in pieces."""
        if self._open is None:
            return
        head, words, number = self._open
        self._open = None
        row = row_of(head, " ".join(words), self._now.layout or Layout(), number)
        if row is None or not all(half.agrees(row.size) for _inside, half in row.halves):
            self._now.cut_line = self._now.cut_line or number
            return
        self._now.joined += 1
        self._add(row)

    def _close(self) -> None:
        self._flush()
        self._now.closed = True

    def _restart(self, number: int) -> None:
        self._flush()
        self._next(number)

    def _log(self, text: str, number: int) -> None:
        now = self._now
        for match in _NRANKS.finditer(text[:2000]):
            if len(now.ranks_said) < 8 and int(match.group(1)) > 0:
                now.ranks_said.add(int(match.group(1)))
        self._library(text)
        now.env.update(environment(text[:4000], self._notes, number) if len(now.env) < 200 else {})
        self._failure(text, number)

    def _failure(self, text: str, number: int) -> None:
        if ("Test " in text or "NCCL WARN" in text) and (match := FAILURE.search(text)) is not None and len(self._now.failures) < 50:
            found = next((group for group in match.groups() if group), "failure")
            self._now.failures.append((number, public_text(found)))

    def _library(self, text: str) -> None:
        if "CCL version" in text and (said := ccl_version(text)) is not None:
            self._now.rccl = self._now.rccl or said[0] == "rccl"
            if self._now.library is None or self._now.library[1] is None:
                self._now.library = (said[1], said[2])

    def _other(self, text: str, bare: str, number: int) -> None:
        name = EXECUTABLE.search(bare[:4000])
        if name is not None and not STARTING.search(bare):
            if self._now.config or self._now.rows or self._now.devices_seen:
                self._restart(number)
            now = self._now
            now.line, now.executable = number, name.group(1)
            now.command = {
                key: match.group(1)
                for key, pattern in (("graph", _GRAPH_OPTION), ("ngpus", _GPUS_OPTION))
                if (match := pattern.search(bare[:4000]))
            }
            now.env.update(environment(bare[:4000], self._notes, number))
            return
        self._failure(text, number)
        self._library(bare)
        if (match := DEVICE.search(bare)) is not None:
            self._device(match, number)
        elif (like := LIKE_ROW.match(text)) is not None:
            long = max(len(like.group(1)), len(like.group(2))) > MOST_DIGITS
            what = (
                f"a row has a size or count of more than {MOST_DIGITS} digits" if long else "a line is like a row but not readable as one"
            )
            self._notes.add("ignored", f"{what}: left out", number)
        elif self._now.rows and not self._now.closed and re.fullmatch(r"[0-9]{1,19}[0-9 ]{0,40}", bare):
            self._now.cut_line = self._now.cut_line or number


def _before(text: str, log: re.Match[str]) -> str:
    """What a log line has overwritten or followed without a line break: a figure may stand right before the host's name."""
    figure = _GLUED.match(log.group(1))
    kept = text[: log.start()] + (figure.group(0) if figure else "")
    return kept + "A" if kept.endswith(" N/") else kept


def runs_of(source: SourceText, notes: Notes) -> list[Run]:
    """The runs of one file; what each MPI process wrote under its own tag is read apart."""
    streams: dict[str, Runs] = {}
    for number, line in enumerate(source.lines, 1):
        text, tag = strip_prefix(line)
        stream = streams.get(tag)
        if stream is None:
            if len(streams) >= MAX_STREAMS:
                notes.add("ignored", f"lines of more than {MAX_STREAMS} processes: the rest is left out", number)
                continue
            stream = streams[tag] = Runs(notes)
        stream.feed(text, number)
    runs = [run for stream in streams.values() for run in stream.done()]
    return sorted(runs, key=lambda run: run.line)
