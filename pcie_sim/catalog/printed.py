"""Printed product names as comparable words: what tools add around a name goes, what tells products apart stays.

Which words say nothing and which make another product stands in a data file (``gpus/_words.yaml``), not here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pcie_sim.catalog import lookup
from pcie_sim.specs.loader import parse_yaml, read_text

WORD_FILE = "_words.yaml"
LONGEST = 200
"""Characters of a printed name that are looked at; no product has a longer one."""

_SIZE = re.compile(r"(?<![0-9a-z.])([0-9]{1,4}) ?gi?b(?![0-9a-z])")
_ASIDE = re.compile(r"\((?:r|tm|c)\)|\(rev [0-9a-z]{1,4}\)|\brev\.? [0-9a-f]{1,2}\b|\(uuid[^)]{0,80}\)?|\b[0-9]{2,4} ?w\b|[®™]")
_COUNT = re.compile(r"^[0-9]{1,3} ?[x×] ")
_NOT_WORD = re.compile(r"[^0-9a-z]+")
_CUT = re.compile(r"(?:\.\.\.?|…)\s*$")
_BRACKET = re.compile(r"\[([^\[\]]{1,120})\]")
_PCI_ID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4})?")
_UNNAMED = re.compile(r"^(.{2,80}?) device \[?([0-9a-f]{4})\b")


@dataclass(frozen=True)
class Words:
    """``silent`` says nothing of the product, ``other`` makes it another one, ``vendors`` are pairs of lspci's vendor text and PCI id."""

    silent: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()
    vendors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Printed:
    """A printed name taken apart.

    Attributes:
        words: the words that say which product it is.
        sizes: memory sizes in it, GB.
        cut: the tool cut it off (``NVIDIA RTX PRO 6000 Blac...``).
    """

    words: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    cut: bool = False

    @property
    def key(self) -> str:
        """The words in one text."""
        return " ".join(self.words)


@lru_cache(maxsize=1)
def word_lists() -> Words:
    """The word lists of the catalog; empty where there is no file."""
    path = lookup.folder("gpus") / WORD_FILE
    if not path.is_file():
        return Words()
    data = parse_yaml(read_text(path), source=str(path))
    vendors = tuple((str(text), str(pci)) for pci, texts in data["vendors"].items() for text in texts)
    return Words(frozenset(map(str, data["silent"])), frozenset(map(str, data["other"])), vendors)


def take_apart(text: str) -> Printed:
    """``text`` without what tools add to it.

    >>> take_apart("NVIDIA A100-PCIE-40GB")
    Printed(words=('a100', 'pcie'), sizes=(40,), cut=False)
    """
    low = text[:LONGEST].strip().lower()
    cut = _CUT.search(low) is not None
    low = _CUT.sub("", low)
    low = _COUNT.sub("", _ASIDE.sub(" ", low)).replace("-", " ").replace("_", " ")
    sizes = tuple(int(size) for size in _SIZE.findall(low))
    raw = _NOT_WORD.sub(" ", _SIZE.sub(" ", low)).split()
    silent = word_lists().silent
    kept = [word for word in raw if word not in silent]
    if cut and raw and raw[-1] in silent and (not kept or kept[-1] != raw[-1]):
        kept.append(raw[-1])  # a whole word may be the beginning of another one
    return Printed(tuple(kept), sizes, cut)


def product_texts(text: str) -> tuple[str, ...]:
    """The parts of ``text`` that may be the product's name, likeliest first: lspci puts it in brackets, several with slashes.

    >>> product_texts("AD102GL [L6000 / RTX 6000 Ada Generation]")
    ('L6000', 'RTX 6000 Ada Generation')
    """
    short = text[:LONGEST]
    inside = [found.strip() for found in _BRACKET.findall(short) if not _PCI_ID.fullmatch(found.strip().lower())]
    inside = [found for found in inside if take_apart(found).words]
    if not inside:
        return (short,)
    name = inside[-1]
    return tuple(part.strip() for part in name.split("/") if part.strip()) if "/" in name else (name,)


def unnamed_id(text: str) -> str | None:
    """``vendor:device`` of a device that lspci has no name for (``NVIDIA Corporation Device 2bb5``), by the vendor's text."""
    match = _UNNAMED.match(" ".join(text[:LONGEST].lower().split()))
    if match is None:
        return None
    vendor, device = match.groups()
    return next((f"{pci}:{device}" for known, pci in word_lists().vendors if known in vendor), None)
