"""XML from strangers: parsed with defusedxml into plain nodes with line numbers; size, depth and number of nodes bounded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import ParseError  # the exception only: parsing is defusedxml's

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from pcie_sim.errors import InputError
from pcie_sim.importers.source import Remark, SourceText, quoted

MAX_CHARACTERS = 8 * 2**20
"""Of a whole file (hwloc's of large machines have 1 to 2 million)."""
MAX_DEPTH = 50
MAX_NODES = 200_000
MAX_ATTRIBUTES = 64
MAX_VALUE = 4096
"""Characters of one attribute (the longest real ones, CPU masks of large hosts, have a few hundred)."""
_HEAD = 16_000
"""Characters in which a root tag must show up (licence texts in front of it have a few hundred)."""
_MOST_BEFORE = 2
"""Lines of text before the XML that are overlooked: a shell prompt, a file name."""
_ROOT = re.compile(r"<([A-Za-z_][A-Za-z0-9_.-]{0,60})(?=[\s/>])")
_JUNK_AFTER_ROOT = 9
_CUT = {3: "no element found", 5: "unclosed token", 20: "unclosed CDATA section"}
"""Numbers of expat's errors (expat.h) that mean that the file ends too early."""


@dataclass
class Counted:
    """Reading a file: things of which one remark with a number tells, and the line of the first."""

    source: SourceText
    counts: Counter[str] = field(default_factory=Counter, kw_only=True)
    first: dict[str, int] = field(default_factory=dict, kw_only=True)

    def count(self, what: str, line: int) -> None:
        """One more of ``what``."""
        self.counts[what] += 1
        self.first.setdefault(what, line)


@dataclass
class Node:
    """One element: attributes with white space around their values dropped, children in order, line (from 1) of its start tag."""

    tag: str
    attrs: dict[str, str]
    line: int
    children: list[Node] = field(default_factory=list)

    def get(self, name: str) -> str:
        """An attribute; "" where it is not there."""
        return self.attrs.get(name, "")

    def each(self, tag: str) -> Iterator[Node]:
        """Its children called ``tag``."""
        return (child for child in self.children if child.tag == tag)


@dataclass(frozen=True)
class Document:
    """A whole file: its root, and what was overlooked around it."""

    root: Node
    remarks: tuple[Remark, ...] = ()


def root_of(source: SourceText) -> tuple[str, int] | None:
    """The root tag of an XML file and its line; None where the text is no XML. Looks at the head of the file only; never raises.

    Declaration, comments and DOCTYPE are skipped, and so are code fences and up to two lines of other text in front (a prompt).
    """
    start = _start(source.raw)
    if start is None:
        return None
    head = source.raw[start : start + _HEAD]
    at = 0
    while at < len(head):
        at += len(head[at:]) - len(head[at:].lstrip())
        if head.startswith("<!--", at):
            end = head.find("-->", at + 4)
            at = end + 3 if end >= 0 else len(head)
        elif head.startswith("<?", at):
            end = head.find("?>", at + 2)
            at = end + 2 if end >= 0 else len(head)
        elif head.startswith("<!DOCTYPE", at):
            end = _doctype_end(head, at)
            at = end + 1 if end >= 0 else len(head)
        else:
            match = _ROOT.match(head, at)
            return (match.group(1), source.raw.count("\n", 0, start + at) + 1) if match is not None else None
    return None


def _doctype_end(head: str, at: int) -> int:
    """Where a DOCTYPE ends: after its internal subset, if it has one (which the parser then refuses)."""
    end = head.find(">", at)
    bracket = head.find("[", at)
    if 0 <= bracket < end:
        closing = head.find("]", bracket)
        return head.find(">", closing) if closing >= 0 else -1
    return end


def _start(raw: str) -> int | None:
    """Offset of the first line that begins like XML, where little else stands before it."""
    at = before = 0
    for line in raw[:_HEAD].splitlines(keepends=True):
        text = line.strip("\ufeff \t\r\n")
        if text.startswith("<"):
            return at + line.index("<")
        if text and not text.startswith(("```", "~~~")):
            before += 1
            if before > _MOST_BEFORE:
                return None
        at += len(line)
    return None


class _Builder:
    """What the parser calls; keeps bounds. ``expat`` is set after the parser is made."""

    def __init__(self, source: SourceText, skipped: int) -> None:
        self.source, self.skipped = source, skipped
        self.expat: Any = None
        self.root: Node | None = None
        self.open: list[Node] = []
        self.count = 0
        self.long_values: list[int] = []

    def line(self) -> int:
        return int(self.expat.CurrentLineNumber) + self.skipped

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        line = self.line()
        self.count += 1
        if self.count > MAX_NODES:
            raise self.source.error(f"more than {MAX_NODES:,} XML elements; no box has that many", line)
        if len(self.open) >= MAX_DEPTH:
            raise self.source.error(f"XML nested deeper than {MAX_DEPTH} levels", line)
        if len(attrs) > MAX_ATTRIBUTES:
            raise self.source.error(f"<{tag[:40]}> has {len(attrs)} attributes; at most {MAX_ATTRIBUTES} are read", line)
        kept = {name: value.strip() for name, value in attrs.items() if len(value) <= MAX_VALUE}
        if len(kept) < len(attrs):
            self.long_values.append(line)
        node = Node(tag, kept, line)
        if self.open:
            self.open[-1].children.append(node)
        else:
            self.root = node
        self.open.append(node)

    def end(self, tag: str) -> None:
        del tag
        self.open.pop()

    def data(self, text: str) -> None:
        """Text between tags: none of these formats needs it."""

    def close(self) -> Node | None:
        return self.root

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        """A DOCTYPE that only names a file is harmless (it is not fetched); one with declarations of its own is refused."""
        del name, system, public
        if internal:
            raise self.source.error("the DOCTYPE holds declarations (entities?); such files are not read. Remove it", self.line())


def parse_xml(source: SourceText, what: str) -> Document:
    """The elements of an XML file.

    Args:
        what: the format, for messages ("an NCCL topology").

    Raises:
        InputError: cut off, not well-formed, entities or other declarations, too large, nested too deep.
    """
    if not source.complete or len(source.raw) > MAX_CHARACTERS:
        raise source.error(f"larger than {MAX_CHARACTERS // 2**20} MiB; {what} is never that large")
    text = source.text if not source.cuts else source.raw  # without colours and fences, unless lines are too long for that
    start = _start(text)
    if start is None:
        raise source.error(f"does not begin like {what} in XML", 1)
    remarks = []
    if text[:start].strip("\ufeff \t\r\n"):
        remarks.append(source.remark("ignored", "text before the XML is left out", 1))  # not quoted: a prompt names user and host
    skipped = text.count("\n", 0, start)
    builder = _Builder(source, skipped)
    parser: Any = DefusedXMLParser(target=builder, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    builder.expat = parser.parser
    parser.parser.StartDoctypeDeclHandler = builder.doctype
    try:
        parser.feed(text[start:])
        parser.close()
    except InputError:
        raise
    except DefusedXmlException as exc:
        raise source.error("uses XML entities or refers to other files; such files are not read", builder.line()) from exc
    except ParseError as exc:
        line = exc.position[0] + skipped
        if exc.code != _JUNK_AFTER_ROOT or builder.root is None or builder.open:
            raise source.error(_broken(builder, exc, what), line) from exc
        remarks.append(source.remark("ignored", f"everything after the end of the XML (</{builder.root.tag[:40]}>) is left out", line))
    except (ValueError, UnicodeError) as exc:
        raise source.error(f"cannot be parsed as XML ({quoted(str(exc))})", builder.line()) from exc
    if builder.root is None:
        raise source.error(f"holds no XML element; {what} was expected")
    if builder.long_values:
        text = f"attribute values of more than {MAX_VALUE:,} characters are left out ({len(builder.long_values)} elements)"
        remarks.append(source.remark("ignored", text, builder.long_values[0]))
    return Document(builder.root, tuple(remarks))


def _broken(builder: _Builder, exc: ParseError, what: str) -> str:
    inside = ""
    if builder.open:
        node = builder.open[-1]
        inside = f" inside <{node.tag[:40]}> (line {node.line})"
    if exc.code in _CUT:
        return f"the file ends{inside}: it is cut; copy {what} again, to its last line"
    reason = str(exc).split(":")[0][:80]
    return f"XML is broken{inside}: {reason}; copy the file again"


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order of the file."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(reversed(one.children))


def whole_number(text: str, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """A decimal or ``0x`` number between ``least`` and ``most``; None for anything else.

    >>> whole_number("12"), whole_number("0xa"), whole_number("-1"), whole_number("-1", -1), whole_number("9" * 400), whole_number("")
    (12, 10, None, -1, None, None)
    """
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        value = int(text)
    elif re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        value = int(text, 16)
    else:
        return None
    return value if least <= value <= most else None


def id_pair(first: str, second: str) -> tuple[int, int] | None:
    """PCI (vendor, device) numbers from hexadecimal text with or without ``0x``; None where one is missing or both are zero.

    >>> id_pair("0x10de", "0x2684"), id_pair("10de", "1db8"), id_pair("0x0000", "0x0000"), id_pair("", "0x1")
    ((4318, 9860), (4318, 7608), None, None)
    """
    found = [re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{1,4})", text.strip()) for text in (first, second)]
    if found[0] is None or found[1] is None:
        return None
    pair = int(found[0].group(1), 16), int(found[1].group(1), 16)
    return pair if pair != (0, 0) else None


def mask_bits(text: str) -> int | None:
    """A CPU mask as one number: groups of 32 bits in hexadecimal, the highest first (Linux, NCCL, hwloc; hwloc leaves empty groups out).

    None where it is none, or one without an end (hwloc's ``0xf...f``).

    >>> [f"{mask_bits(text) or 0:x}" for text in ("00000000,ff000000", "0x000000ff,0xffff0000,0x0", "0xffffff00,,0x0", "f", "0xf...f", "")]
    ['ff000000', 'ffffff000000000000', 'ffffff000000000000000000', 'f', '0', '0']
    """
    if not text or len(text) > MAX_VALUE or not re.fullmatch(r"(?:0[xX])?[0-9a-fA-F,xX]+", text):
        return None
    value = 0
    for group in text.split(","):
        match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{0,8})", group)
        if match is None:
            return None
        value = (value << 32) | int(match.group(1) or "0", 16)
    return value


def bit_ranges(bits: int, most: int = 256) -> tuple[tuple[int, int], ...]:
    """The set bits of a mask as ranges, both ends included; at most ``most`` of them.

    >>> bit_ranges(0b1110_0110), bit_ranges(0)
    (((1, 2), (5, 7)), ())
    """
    found: list[tuple[int, int]] = []
    at = 0
    while bits and len(found) < most:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        found.append((at + zeros, at + zeros + ones - 1))
        bits >>= ones
        at += zeros + ones
    return tuple(found)
