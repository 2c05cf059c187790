"""Fuzz every importer: `make fuzz` (60 s each), `make fuzz SECONDS=5 SEEDS=folder` with files of your own as further seeds.

Half of the time goes to texts that hypothesis makes up from the words of the format, half to seeds with damage that real pastes have
(lines cut, doubled, joined, moved; bytes flipped; numbers blown up; blanks and tabs exchanged). Only InputError may come out of a reader,
of the merge of all its facts into a box, and of the doctor. What crashes is written to ``fuzz-crash-<format>.txt``.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import Format, formats, read_any, source_of
from pcie_sim.importers.build import build_box
from pcie_sim.topology import from_spec

HERE = Path(__file__).resolve()
MOST_SEED = 40_000
NUMBERS = ["0", "-1", "1e308", "nan", "inf", "9" * 30, "1000000", "0x", "2147483648", "-0.0", "1e-400", "\u0661"]


def fixtures() -> list[str]:
    """Every text of several lines that a test of an importer holds."""
    found: list[str] = []
    folder = HERE.parents[1] / "importers"
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        for value in vars(module).values():
            texts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            found += [text for text in texts if isinstance(text, str) and text.count("\n") >= 2]
    return list(dict.fromkeys(found))


def seeds_of(folder: str | None) -> list[str]:
    """Texts of the files below ``folder``, the head of each."""
    if folder is None:
        return []
    found = []
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and path.suffix in (".txt", ".log", ".xml", ".json", ".csv", ".md"):
            found.append(path.read_bytes()[:MOST_SEED].decode("utf-8", errors="replace"))
    return found


def damaged(text: str, rng: random.Random) -> str:
    """``text`` with one to six kinds of damage."""
    for _ in range(rng.randint(1, 6)):
        text = rng.choice(DAMAGE)(text, rng)
    return text[: 4 * MOST_SEED]


def _lines(change: Callable[[list[str], random.Random], list[str]]) -> Callable[[str, random.Random], str]:
    def damage(text: str, rng: random.Random) -> str:
        lines = text.split("\n")
        return "\n".join(change(lines, rng)) if len(lines) > 1 else text

    return damage


def _cut(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] if rng.random() < 0.7 else text[at:]


def _flip(text: str, rng: random.Random) -> str:
    chars = list(text)
    for _ in range(min(len(chars), rng.randint(1, 12))):
        chars[rng.randrange(len(chars))] = chr(
            rng.choice([0, 9, 10, 13, 27, 32, 34, 60, 62, 91, 93, 123, 125, 58, 45, 0x202E, 0xFFFD, rng.randint(32, 126)])
        )
    return "".join(chars)


def _number(text: str, rng: random.Random) -> str:
    places = list(re.finditer(r"[0-9]+", text))
    if not places:
        return text
    place = rng.choice(places)
    return text[: place.start()] + rng.choice(NUMBERS) + text[place.end() :]


def _drop(lines: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(lines))
    return lines[:at] + lines[at + rng.randint(1, 4) :]


def _double(lines: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(lines))
    return lines[:at] + [lines[at]] * rng.randint(2, 30) + lines[at + 1 :]


def _swap(lines: list[str], rng: random.Random) -> list[str]:
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def _join(lines: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(lines) - 1)
    return [*lines[:at], lines[at] + lines[at + 1], *lines[at + 2 :]]


def _splice(lines: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(lines))
    line = lines[at]
    cut = rng.randint(0, len(line))
    return [*lines[:at], line[:cut], line[cut:], *lines[at + 1 :]]


def _prefix(lines: list[str], rng: random.Random) -> list[str]:
    head = rng.choice(["# ", "> ", "[1,0]<stdout>:", "2026-01-01T00:00:00Z ", "    ", "\t", "host:1:2 [0] NCCL INFO "])
    return [head + line for line in lines]


DAMAGE: list[Callable[[str, random.Random], str]] = [
    _cut,
    _flip,
    _number,
    _number,
    _lines(_drop),
    _lines(_double),
    _lines(_swap),
    _lines(_join),
    _lines(_splice),
    _lines(_prefix),
    lambda text, rng: text.replace("\t", "  "),
    lambda text, rng: re.sub(r" {2,}", "\t", text),
    lambda text, rng: text * rng.randint(2, 3),
    lambda text, rng: text.replace("\n", "\r\n"),
    lambda text, rng: text.upper() if rng.random() < 0.3 else text,
]


def tried(one: Format, text: str) -> str:
    """What became of ``text``: read, refused, or unknown. Anything but InputError goes through."""
    try:
        source = source_of(text.encode("utf-8", errors="replace"), "fuzz")
        line = one.sniff(source)
        if line is not None:
            one.read(source)
        found = read_any(source)
        if found.model is None and not found.box.empty:
            built = build_box([found])
            from_spec(built.spec)
    except InputError as exc:
        if len(str(exc).splitlines()) > 2:
            raise AssertionError(f"a message of more than two lines: {exc}") from exc
        return "refused"
    return "read"


def words_of(seeds: list[str]) -> list[str]:
    """The words of a format: what hypothesis builds its texts from."""
    words = {word for text in seeds for word in re.findall(r"[A-Za-z_<>\"/:=#%\[\](){}.,+-]{1,20}|[0-9.]{1,12}", text[:8000])}
    return sorted(words)[:2000] or ["GPU0"]


def fuzz(one: Format, seeds: list[str], seconds: float, start: int) -> tuple[int, dict[str, int], float]:
    """Fuzz one format for so long; returns tries, outcomes and the longest single time."""
    mine = [text for text in seeds if _is_of(one, text)]
    counts: dict[str, int] = {}
    slowest = 0.0
    current = ""

    def run(text: str) -> None:
        nonlocal slowest, current
        current = text
        begin = time.perf_counter()
        outcome = tried(one, text)
        slowest = max(slowest, time.perf_counter() - begin)
        counts[outcome] = counts.get(outcome, 0) + 1

    end = time.perf_counter() + seconds
    rng = random.Random(start)
    try:
        while time.perf_counter() < end - seconds / 2 and (mine or seeds):
            run(damaged(rng.choice(mine or seeds), rng))
        token = st.sampled_from(words_of(mine or seeds))
        blanks = st.sampled_from([" ", "\t", "\n", "\n", "", "  "])
        made = st.lists(st.tuples(token | st.text(max_size=6), blanks), max_size=60).map(lambda parts: "".join(a + b for a, b in parts))
        turn = 0
        while time.perf_counter() < end:
            turn += 1

            @seed(start + turn)
            @settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
            @given(made)
            def texts(text: str) -> None:
                if time.perf_counter() < end:
                    run(text)

            texts()
    except Exception:
        Path(f"fuzz-crash-{one.name}.txt").write_bytes(current.encode("utf-8", errors="replace"))
        raise
    return sum(counts.values()), counts, slowest


def _is_of(one: Format, text: str) -> bool:
    try:
        return one.sniff(source_of(text, "seed")) is not None
    except InputError:
        return False


def main() -> int:
    """Fuzz them all; exit code 1 after a crash."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seeds", help="a folder of files to damage")
    parser.add_argument("--only", help="one format")
    parser.add_argument("--start", type=int, default=0, help="seed of the random numbers")
    asked = parser.parse_args()
    seeds = fixtures() + seeds_of(asked.seeds)
    print(f"{len(seeds)} seeds, {len(formats())} formats")
    crashes = 0
    for one in formats().values():
        if asked.only is not None and one.name != asked.only:
            continue
        try:
            tries, counts, slowest = fuzz(one, seeds, asked.seconds, asked.start)
        except Exception:
            crashes += 1
            print(f"{one.name:24} CRASH, see fuzz-crash-{one.name}.txt")
            traceback.print_exc()
            continue
        outcomes = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        print(f"{one.name:24} {tries:7} tries ({outcomes}), slowest {slowest * 1e3:.0f} ms", flush=True)
    print("no crash" if not crashes else f"{crashes} formats crashed")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
