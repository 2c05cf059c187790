"""What of a stranger's command line may be kept: no tokens, keys, addresses, host names or folders of people."""

from __future__ import annotations

import re

LEFT_OUT = "(left out)"
_SECRET_NAME = re.compile(
    r"token(?!iz)(?!s)|secret|passw|api[-_]?key|access[-_]?key|credential|auth(?!or)|private|(?:^|[-_])ssl|keyfile|(?:^|[-_])key(?:$|[-_])|cert",
    re.IGNORECASE,
)
_ADDRESS_NAME = re.compile(
    r"(?:^|[-_])(?:host|hostname|addr|address|ip|url|uri|endpoint|rdzv|master|user|username|email|node-?name|bootstrap-server)(?:$|[-_])",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]{1,20}://|(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])|[A-Za-z0-9._-]{1,64}@[A-Za-z0-9-]|(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}"
)
_TOKEN = re.compile(
    r"\b(?:hf|sk|pk|ghp|gho|ghs|glpat|nvapi|xox[a-z]|AKIA|eyJ)[-_A-Za-z0-9]{8,}|GPU-[0-9a-fA-F]{8}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
_LONG = re.compile(
    r"(?<![A-Za-z0-9_/+=-])(?=[A-Za-z0-9_+=-]{0,200}[0-9])(?=[A-Za-z0-9_+=-]{0,200}[A-Za-z])[A-Za-z0-9_+=]{32,}(?![A-Za-z0-9_])"
)


def is_secret_name(name: str) -> bool:
    """A setting whose value is nobody's business."""
    return _SECRET_NAME.search(name) is not None or _ADDRESS_NAME.search(name) is not None


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../", "\\\\")) or re.match(r"[A-Za-z]:[\\/]", text) is not None


def kept(name: str, value: str) -> str:
    """``value`` as it may be kept under this name: as it is, a path without its folders, or :data:`LEFT_OUT`.

    >>> kept("tp-size", "8"), kept("hf-token", "abc"), kept("chat-template", "/home/me/a.jinja"), kept("host", "10.0.0.1")
    ('8', '(left out)', 'a.jinja', '(left out)')
    """
    value = "".join(char for char in value[:400] if char.isprintable())
    if is_secret_name(name) or _ADDRESS.search(value) or _TOKEN.search(value) or _LONG.search(value):
        return LEFT_OUT
    if _is_path(value):
        return re.split(r"[\\/]", value.rstrip("/\\"))[-1]
    return re.sub(r"(?:/home|/Users|/root)/[^\s\"',:]{0,200}", LEFT_OUT, value)


def kept_model(text: str) -> str | None:
    """The model as the command names it; of a local path only its last part, of a hub's cache the repository."""
    cached = re.search(r"models--([A-Za-z0-9._-]{1,80}?)--([A-Za-z0-9._-]{1,80})", text[:600])
    if cached is not None:
        return f"{cached.group(1)}/{cached.group(2)}"
    if "://" in text or _is_path(text):
        text = re.split(r"[\\/]", text.rstrip("/\\"))[-1]
    name = kept("model", text)
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+/:-]{0,160}", name) else None
