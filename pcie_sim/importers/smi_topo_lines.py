"""The lines of ``nvidia-smi topo`` tables: header, rows, wrapped pieces, legend, and which of them make one table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PATH_WORDS = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS", "SOC"})
P2P_WORDS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
MOST_GPUS = 512
MOST_NICS = 512
MOST_TABLES = 64

_WORD = r"NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|CNS|GNS|TNS|NS|OK|DR|X|U"
_CELL = re.compile(_WORD, re.IGNORECASE)
_ROW = re.compile(rf"(?<![A-Za-z0-9_./])((?:GPU|NIC)[0-9]{{1,3}})[ \t:]{{0,60}}(?=(?:{_WORD}){{1,600}}(?![A-Za-z_]))", re.IGNORECASE)
_FIRST_GPU = re.compile(r"(?<![A-Za-z0-9_./])GPU[0-9]{1,3}(?![0-9])")
_HEAD = re.compile(
    r"(?P<gpunuma>GPU\s{1,8}N[UMA]{0,3}(?:\s{1,8}ID?)?(?![A-Za-z0-9]))"
    r"|(?P<numa>NUMA(?:\s{0,8}Aff[a-z]{0,8})?)"
    r"|(?P<cpu>CPU(?:\s{0,8}Aff[a-z]{0,8})?)"
    r"|(?P<gpu>GPU[0-9]{1,3})"
    r"|(?P<nic>NIC[0-9]{1,3}|mlx[0-9]{1,2}_(?:bond_?)?[0-9]{1,3}|[a-z](?=[a-z_-]{0,40}[0-9])[a-z0-9_-]{1,40})"
)
_COMMAND = re.compile(r"nvidia-smi\s{1,8}topo\b")
_ACCESS = re.compile(r"(?:-p2p|--p2p_capability)[ =]{1,4}([rwnap])\b")
_LEGEND = re.compile(r"\b(NIC[0-9]{1,3})\s{0,8}:\s{0,8}([A-Za-z][A-Za-z0-9_.-]{0,40})\s*$")
_AFFINITY_LIKE = re.compile(r"N/A|[0-9][0-9,.\-…]{0,2000}", re.IGNORECASE)
_TOKEN = re.compile(r"\S{1,2000}")
_LONGEST = 12_000


@dataclass
class Row:
    """One row: its words (None: a word that is none of nvidia-smi's) and the text after them."""

    line: int
    words: list[str | None] = field(default_factory=list)
    rest: str = ""
    unknown: list[str] = field(default_factory=list)
    tabbed: bool = False
    """The text after the words is TAB-separated."""
    start: int = 0
    """Where ``rest`` begins in its line."""


@dataclass
class Table:
    """One matrix as it stands in the file. ``columns``: GPUn, NICn or device names, in order; empty: the header is lost."""

    line: int
    columns: list[str] = field(default_factory=list)
    affinity: list[tuple[str, int]] = field(default_factory=list)
    """(``cpu``, ``numa`` or ``gpunuma``, column of the text) of the header's last words."""
    glued: bool = False
    """The affinity words stand without a blank between them: blanks were lost, and values cannot be told apart."""
    rows: dict[str, Row] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    access: str = ""
    asked_p2p: bool = False
    repeated: list[int] = field(default_factory=list)


def first_table_line(lines: Sequence[str]) -> int | None:
    """The line (from 1) of the first table: a header with a row below it, or two rows of a table without one."""
    header: int | None = None
    earlier: tuple[int, str] | None = None
    for number, line in enumerate(lines, 1):
        if "GPU" not in line or len(line) > _LONGEST:
            continue
        text = _plain(line)
        found = [match.group(1).upper() for match in _ROW.finditer(text)]
        if found:
            if header is not None and number - header <= 12:
                return header
            if header_of(text[: _row_start(text)], 0) is not None:
                return number
            if earlier is not None and number - earlier[0] <= 3 and _diagonal(text):
                return earlier[0]
            earlier = (number, found[0]) if _diagonal(text) else None
        elif header_of(text, 0) is not None:
            header = header if header is not None and number - header <= 4 else number
    return None


def _diagonal(text: str) -> bool:
    """A row that shows itself (X) among at least two words: what prose that names a GPU does not."""
    match = _ROW.search(text)
    if match is None:
        return False
    words = text[match.end() :].upper().split()
    return "X" in words and len(words) > 1 and _CELL.fullmatch(words[0]) is not None and _CELL.fullmatch(words[1]) is not None


def _plain(line: str) -> str:
    return line.replace("|", " ").replace("│", " ").replace("\xa0", " ")


def _row_start(text: str) -> int:
    match = _ROW.search(text)
    return match.start() if match is not None else len(text)


def pieces(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(line number, text): lines without frames, cut before each row label, so that a row that lost its line break stands alone."""
    for number, line in enumerate(lines, 1):
        text = _plain(line[:_LONGEST])
        if "GPU" not in text and "NIC" not in text:
            yield number, text
            continue
        at = 0
        for match in _ROW.finditer(text):
            if match.start() > at and text[at : match.start()].strip(" #>\t"):
                yield number, text[at : match.start()]
            at = match.start()
        yield number, text[at:]


def header_of(text: str, line: int) -> Table | None:
    """The table that a header line begins; None where ``text`` is none."""
    first = _FIRST_GPU.search(text)
    if first is None or first.start() > 80:
        return None
    table = Table(line)
    at, end = first.start(), len(text)
    while at < end:
        if text[at].isspace():
            at += 1
            continue
        match = _HEAD.match(text, at)
        if match is None:
            if table.affinity:  # the header is cut inside these words
                break
            return None
        kind = str(match.lastgroup)
        if kind in ("gpu", "nic"):
            if not table.affinity:
                table.columns.append(match.group().upper() if match.group().upper().startswith(("GPU", "NIC")) else match.group())
        else:
            table.glued |= bool(table.affinity) and not text[match.start() - 1].isspace()
            table.affinity.append((kind, match.start()))
        at = match.end()
    return table


class Reader:
    """Puts pieces together into tables."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.dropped = 0
        self._open: Table | None = None
        self._last: Row | None = None
        self._access = ""
        self._asked_p2p = False

    def feed(self, line: int, text: str) -> None:
        """Take the next piece."""
        if not text.strip(" #>\t"):
            return
        if _COMMAND.search(text) is not None:
            access = _ACCESS.search(text)
            self._access, self._asked_p2p = (access.group(1) if access is not None else ""), "p2p" in text
            self._open = self._last = None
            return
        row = _ROW.match(text)
        if row is not None:
            self._row(row.group(1).upper(), line, text, row.end())
            return
        if self._legend(text) or self._device_row(line, text) or self._header(line, text):
            return
        if self._last is not None and self._open is not None and self._continues(self._open, self._last, text):
            return
        if "legend" in text.lower():
            self._open = None
        self._last = None

    def _start(self, table: Table) -> None:
        if len(self.tables) >= MOST_TABLES:
            self.dropped += 1
            self._open = None
            return
        table.access, table.asked_p2p = self._access, self._asked_p2p
        self._access, self._asked_p2p = "", False
        self.tables.append(table)
        self._open, self._last = table, None

    def _row(self, label: str, line: int, text: str, at: int) -> None:
        table = self._open
        if table is None or (label in table.rows and not table.columns):
            if label.startswith("NIC"):
                return
            self._start(Table(line))
            table = self._open
            if table is None:
                return
        if label in table.rows:
            table.repeated.append(line)
            self._last = None
            return
        if len(table.rows) > MOST_GPUS + MOST_NICS:
            return
        self._last = table.rows[label] = row_of(text, at, line, len(table.columns), open_end=not table.affinity)

    def _legend(self, text: str) -> bool:
        match = _LEGEND.search(text)
        if match is None or not self.tables or match.start() > 80:
            return False
        legend = self.tables[-1].legend
        if len(legend) < MOST_NICS:
            legend.setdefault(match.group(1), match.group(2))
        self._open = None
        return True

    def _device_row(self, line: int, text: str) -> bool:
        """A row of a network card by its device name, or a GPU's whose first word is none of nvidia-smi's, or is cut off."""
        if self._open is None:
            return False
        words = text.split(None, 2)
        at = 1 if len(words) > 1 and words[0] in ("#", ">") else 0
        label = words[at].strip(":")
        table = self._open
        if label not in table.columns or label in table.rows:
            return False
        rest = words[at + 1 :]
        if label.startswith("GPU") and (_last_word(" " + " ".join(rest)) == 0 if rest else not table.rows):
            return False
        self._last = table.rows[label] = row_of(text, text.index(label) + len(label), line, len(table.columns))
        return True

    def _header(self, line: int, text: str) -> bool:
        table = header_of(text, line)
        if table is None:
            return self._more_header(text)
        now = self._open
        if now is not None and now.columns and not now.rows and line - now.line <= 4:  # a header wrapped by the terminal
            known = set(now.columns)
            if not now.affinity and not any(column in known for column in table.columns):
                now.columns += table.columns
                now.affinity, now.glued = table.affinity, table.glued
                return True
        self._start(table)
        return True

    def _more_header(self, text: str) -> bool:
        """The affinity words of a header, or its network cards, alone on the next line."""
        now = self._open
        if now is None or now.rows or not now.columns:
            return False
        more = header_of("GPU0 " + text.strip(" #>\t"), 0)
        if more is None or (len(more.columns) == 1 and not more.affinity):
            return False
        if now.affinity and len(more.columns) > 1:
            return False
        now.columns += more.columns[1:]
        now.affinity += more.affinity
        return True

    def _continues(self, table: Table, row: Row, text: str) -> bool:
        """The rest of a row that the terminal wrapped."""
        count = len(table.columns)
        if row.rest.strip() or (count and len(row.words) >= count and not table.affinity):
            return False
        tokens = text.strip(" #>\t").split()
        if not tokens or not all(_CELL.fullmatch(token) or _AFFINITY_LIKE.fullmatch(token) for token in tokens):
            return False
        more = row_of(text.strip(" #>\t"), 0, row.line, count - len(row.words) if count else 0)
        if count and len(row.words) + len(more.words) > count:
            return False
        row.words += more.words
        row.rest, row.unknown, row.tabbed = more.rest, row.unknown + more.unknown, False
        row.start = 0
        return True


def row_of(text: str, at: int, line: int, count: int, *, open_end: bool = False) -> Row:
    """The row whose words begin at ``at``: ``count`` of them (0: unknown), or more where the header may be cut (``open_end``)."""
    row = Row(line)
    fields = text[at:].split("\t")
    if count and len(fields) >= count and "\t" in text and _by_fields(row, text, at, fields, count):
        return row
    end, last = len(text), -1
    most = count if count and not open_end else MOST_GPUS + MOST_NICS
    while at < end and len(row.words) < most:
        if text[at].isspace():
            at += 1
            continue
        match = _CELL.match(text, at)
        if match is not None and _ends(text, match.end(), match.group()):
            row.words.append(match.group().upper())
            at = match.end()
            continue
        found = _TOKEN.match(text, at)
        token = found.group() if found is not None else text[at]
        last = _last_word(text) if last < 0 else last
        if _AFFINITY_LIKE.fullmatch(token) is not None or last <= at:
            if token.isalpha() and len(row.words) < count and token.upper() != "NUMA":
                row.unknown.append(token)
                at += len(token)
            break
        row.words.append(None)
        row.unknown.append(token)
        at += len(token)
    row.rest, row.start = text[at:], at
    return row


def _by_fields(row: Row, text: str, at: int, fields: list[str], count: int) -> bool:
    """Words by TABs, where all of them are there: an empty field stays an empty cell."""
    first = 1 if not fields[0].strip() else 0
    cells = [one.strip() for one in fields[first : first + count]]
    if len(cells) < count or any(len(cell.split()) > 1 for cell in cells) or sum(1 for cell in cells if _CELL.fullmatch(cell)) * 2 < count:
        return False
    if any(cell and (_AFFINITY_LIKE.fullmatch(cell) is not None) for cell in cells):
        return False
    for cell in cells:
        known = _CELL.fullmatch(cell) is not None
        row.words.append(cell.upper() if known else None)
        if cell and not known:
            row.unknown.append(cell)
    used = sum(len(one) + 1 for one in fields[: first + count])
    row.rest, row.start, row.tabbed = text[at + used :], at + used, True
    return True


def _ends(text: str, at: int, word: str) -> bool:
    """A word ends here: at a blank, before the next word (tabs lost), or before the affinity's digits."""
    if at >= len(text) or not (text[at].isalnum() or text[at] == "_"):
        return True
    if text[at].isdigit():
        return not word.upper().startswith("NV")
    return _CELL.match(text, at) is not None


def _last_word(text: str) -> int:
    """Where the last word of a matrix begins in ``text``; 0: nowhere."""
    return max((match.start() for match in _TOKEN.finditer(text) if _CELL.fullmatch(match.group()) is not None), default=0)
