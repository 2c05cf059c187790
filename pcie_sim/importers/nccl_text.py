"""What nccl-tests tables and NCCL logs share: line prefixes, versions, environment, error lines; and nothing private."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath

from pcie_sim.importers.source import Remark, RemarkKind, SourceText

LOG_HEAD = re.compile(
    r"(?:(?<![A-Za-z0-9_.\-])|(?<=[ \t]-))([A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}):([0-9]{1,8}):([0-9]{1,8}) \[([0-9]{1,4})\] "
    r"(?:[a-z_/.]{1,40}:[0-9]{1,6} )?NCCL (INFO|WARN|TRACE|CALL|ABORT)\b ?"
)
"""``host:pid:tid [dev] NCCL INFO``, anywhere in a line (TRACE and WARN may name the source file before ``NCCL``)."""
_BARE_HEAD = re.compile(r"(?:\[([0-9]{1,4})\] )?\bNCCL (INFO|WARN|TRACE) ")
_TAG = re.compile(r"\[[0-9]{1,6},([0-9]{1,7})\](?:<std(?:out|err|diag)>)?:[ ]?")
_STAMP = re.compile(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?[ \t]")
_SPEAKER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}[ \t]{0,8}[:|][ \t]|[>|][ \t]")
_AFTER_SPEAKER = re.compile(
    r"[ \t]{0,80}(?:#|-?[0-9]{1,20}[ \t]{1,80}-?[0-9]{1,20}[ \t]|\[?[0-9]{4}-|NCCL |[A-Za-z0-9_.\-]{1,64}:[0-9]{1,8}:[0-9]{1,8} \[)"
)
_CCL_VERSION = re.compile(
    r"\b([NR])CCL version ?:? ?([0-9]{1,2}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)[.\-a-z0-9]{0,12}(?:\+(?:cuda|hip)([0-9]{1,2}\.[0-9]{1,3}))?"
)
_ENV_SET = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]{1,60}) set (?:by environment )?to ([^\s]{1,200})")
_ENV_GIVEN = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]{1,60})=([^\s\"']{1,200})")
_LONGEST_VALUE = 80
_WHOLE = re.compile(r"[+-]?[0-9]{1,80}")
_NO_NUMBER = re.compile(
    r"[+-]?(?:nan|inf|infinity|[0-9]{1,40}\.[0-9]{0,40}(?:e[+-]?[0-9]{1,9})?|[0-9]{1,40}e[+-]?[0-9]{1,9})", re.IGNORECASE
)
_PRIVATE_NAME = re.compile(r"COMM_ID|HOSTID|TOKEN|SECRET|PASS|KEY|UUID|CONF_FILE")
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:[:<][0-9]{1,5}>?)?|\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}(?:<[0-9]{1,5}>)?")
_PATH = re.compile(r"(?:/[^\s/'\"]{1,80}){1,12}/?")
_NUMBERED = re.compile(r"0x[0-9a-fA-F]{4,16}")


def strip_prefix(line: str) -> tuple[str, str]:
    """A line without what launchers put before it (``[1,0]<stdout>:``, ``node0: ``, ``worker-1  | ``, ``> ``, a time of day), and the tag
    of the MPI process that wrote it ("" where there is none).

    >>> strip_prefix("[1,0]<stdout>:# nThread 1"), strip_prefix("node27: 2024-01-02T03:04:05Z    8   2   float")
    (('# nThread 1', '0'), ('   8   2   float', ''))
    """
    tag = ""
    for _round in range(4):
        start = len(line) - len(line.lstrip(" \t"))
        if (match := _TAG.match(line, start)) is not None:
            tag = match.group(1)
        elif (match := _STAMP.match(line, start)) is None and (
            (match := _SPEAKER.match(line, start)) is None or _AFTER_SPEAKER.match(line, match.end()) is None
        ):
            break
        line = line[match.end() :]
    return line, tag


def library_version(number: str) -> str | None:
    """``22907`` -> 2.29.7 (``2804`` -> 2.8.4, as before NCCL 2.9); None where it is no version.

    >>> library_version("22907"), library_version("2804"), library_version("0")
    ('2.29.7', '2.8.4', None)
    """
    if not re.fullmatch(r"[0-9]{4,6}", number):
        return None
    value = int(number)
    if value < 10_000:
        return f"{value // 1000}.{value // 100 % 10}.{value % 100}"
    return f"{value // 10_000}.{value // 100 % 100}.{value % 100}"


def ccl_version(line: str) -> tuple[str, str, str | None] | None:
    """(``nccl`` or ``rccl``, version, CUDA version) of a line that says ``NCCL version 2.28.9+cuda13.0``."""
    match = _CCL_VERSION.search(line)
    return ("nccl" if match.group(1) == "N" else "rccl", match.group(2), match.group(3)) if match else None


def environment(line: str, notes: Notes | None = None, number: int | None = None) -> dict[str, str]:
    """NCCL_* settings that a log line (``NCCL_X set by environment to Y``) or a pasted command (``NCCL_X=Y ./all_reduce_perf``) names,
    without those that hold addresses or identities; of paths the last part. Values that the library cannot take (numbers beyond 64 bits,
    nan, whole paragraphs) are dropped, and noted at line ``number``.
    """
    if "CCL_" not in line:
        return {}
    found = {}
    for match in (*_ENV_SET.finditer(line), *_ENV_GIVEN.finditer(line)):
        name, said = match.group(1), match.group(2).rstrip(".,;")
        value = public_value(name, said)
        if not value:
            continue
        if (why := _not_taken(value)) is None:
            found[name] = value
        elif notes is not None:
            notes.add("ignored", f"{name}: {why}: left out", number)
    return found


def _not_taken(value: str) -> str | None:
    """Why the library would not take a value; None where it would."""
    if len(value) > _LONGEST_VALUE:
        return f"a value of more than {_LONGEST_VALUE} characters"
    if _NO_NUMBER.fullmatch(value):
        return "a value that is no whole number"
    if _WHOLE.fullmatch(value) and (len(value) > 20 or abs(int(value)) >= 2**63):
        return "a number beyond 64 bits"
    return None


def public_value(name: str, value: str) -> str:
    """A setting's value without what is private; "" where nothing is left."""
    if _PRIVATE_NAME.search(name) or _ADDRESS.search(value):
        return ""
    return last_part(value)[:200] if "/" in value or "\\" in value else value[:200]


def last_part(path: str) -> str:
    """The file name of a path."""
    return PureWindowsPath(PurePosixPath(path).name).name


def public_text(text: str, most: int = 120) -> str:
    """A message of a log without host, process, addresses, pointers and folders, cut to ``most`` characters."""
    text = LOG_HEAD.sub("", text[:2000])
    text = _ADDRESS.sub("<address>", text)
    text = _NUMBERED.sub("<pointer>", text)
    text = _PATH.sub(lambda match: last_part(match.group(0).rstrip("/")), text)
    text = " ".join("".join(c if c.isprintable() else "?" for c in text).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def log_parts(line: str) -> Iterator[tuple[str, str, str, str]]:
    """(process, device, level, message) of every log line in a line: writers that overwrite each other leave several in one, spliced.

    ``process`` is only for telling processes of one file apart; it is never stored.
    """
    heads = list(LOG_HEAD.finditer(line)) if "NCCL " in line else []
    if not heads and (bare := _BARE_HEAD.search(line)) is not None:  # host and process taken off by hand
        yield "", bare.group(1) or "", bare.group(2), line[bare.end() :]
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(line)
        yield f"{head.group(1)}:{head.group(2)}", head.group(4), head.group(5), line[head.end() : end]


class Notes:
    """Remarks of one file: the same text again is counted, not repeated."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self._found: dict[tuple[RemarkKind, str], list[int | None]] = {}

    def add(self, kind: RemarkKind, text: str, line: int | None = None) -> None:
        """Note ``text`` at ``line``."""
        entry = self._found.setdefault((kind, text), [line, 0])
        entry[1] = (entry[1] or 0) + 1

    def remarks(self) -> tuple[Remark, ...]:
        """All of them, each with its first line and how often."""
        return tuple(
            self.source.remark(kind, text if count == 1 else f"{text} ({count} times)", line)
            for (kind, text), (line, count) in self._found.items()
        )


def settings_p2p(env: Mapping[str, str]) -> str | None:
    """``off`` where the settings switch peer access off."""
    return "off" if env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0") else None


def set_id(name: str, number: int, of: int) -> str:
    """A set's name from the file's: ``all_reduce-2`` for the second of several runs."""
    stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", last_part(name).rsplit(".", 1)[0])[:60].strip("-.+_")
    stem = stem if stem and stem[0].isalnum() else "run"
    return f"{stem}-{number}" if of > 1 else stem


def file_label(name: str) -> str:
    """The file name for ``sources``: without its folder and what no terminal prints."""
    return "".join(c if c.isprintable() else "?" for c in last_part(name))[:200] or "file"
