"""What all specs share: frozen pydantic models, quantities with evidence, and readable validation messages."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence
from pcie_sim.specs.loader import line_of_key
from pcie_sim.specs.messages import HALF_CHARACTER, readable, what_is

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,79}$")]
"""A catalog name: letters, digits and ``. _ + -``, at most 80 characters (so that it is never a path)."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain_text(text: str) -> str:
    """Text that is printed to terminals: what could move the cursor or rename the window is refused, and what no terminal can print.

    Raises:
        ValueError: a control character, or half of a surrogate pair.
    """
    found = _CONTROL.search(text)
    if found is None:
        return text
    code = ord(found.group())
    if code >= 0xD800:
        raise ValueError(f"{HALF_CHARACTER} (\\u{code:04x}); write plain text")
    raise ValueError(f"holds a control character (\\x{code:02x}); write plain text")


Text = Annotated[str, Field(max_length=4000), AfterValidator(plain_text)]


class Spec(BaseModel):
    """Base of all specs: immutable, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=20_000)


class Quantity(Spec):
    """One number with where it comes from.

    ``low`` and ``high`` are the 10 % and 90 % points of what is plausible for a box of this kind; without them the label
    decides (see :meth:`sigma_log`). The unit is SI unless named.
    """

    value: float
    unit: Annotated[str, Field(max_length=20)]
    evidence: Evidence
    source: Text
    low: float | None = None
    high: float | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Quantity:
        if (self.low is not None and self.low > self.value) or (self.high is not None and self.high < self.value):
            raise ValueError(f"low <= value <= high does not hold ({self.low}, {self.value}, {self.high})")
        return self

    @property
    def sigma_log(self) -> float:
        """Standard deviation of ln(value): from low/high (80 % interval), else the default of the label."""
        import math

        if self.value > 0 and (self.low or self.high):
            low = self.low if self.low else self.value
            high = self.high if self.high else self.value
            if low > 0:
                span = math.log(high) - math.log(low)
                span = span if self.low and self.high else 2 * span
                return span / 2.563  # distance between the 10 % and 90 % points of a normal, in standard deviations
        return DEFAULT_SIGMA_LOG[self.evidence]


DEFAULT_SIGMA_LOG: dict[Evidence, float] = {
    "measured": 0.03,
    "fitted": 0.08,
    "profile": 0.15,
    "nominal": 0.20,
    "assumed": 0.40,
}
"""Default relative uncertainty of a number by its label, where its file gives no low and high (assumed)."""


class Provenance(Spec):
    """Where a group of plain numbers in a file comes from: one source and one label for the named fields."""

    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    source: Text
    evidence: Evidence
    note: Text | None = None


SpecT = TypeVar("SpecT", bound=BaseModel)


def build(kind: type[SpecT], data: Any, *, source: str, text: str | None = None) -> SpecT:
    """``kind`` from plain data; a broken file becomes an :class:`InputError` naming file, line, key and what to do.

    Args:
        data: what the loader returned.
        source: the file's name, for messages.
        text: the file's text, if at hand, to find the line of the key.
    """
    if not isinstance(data, dict):
        raise InputError(f"{source}: expected keys and values (a mapping), found {what_is(data)}")
    try:
        return kind.model_validate(data)
    except ValidationError as exc:
        raise InputError(_message(exc, data, source, text)) from exc


def _keys_in(data: Any, loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """``loc`` without the tags that pydantic puts in for a choice of kinds (``attention.gqa.heads``)."""
    keys: list[int | str] = []
    node = data
    for key in loc:
        if isinstance(node, dict) and key not in node and key in node.values():
            continue
        keys.append(key)
        try:
            node = node[key]
        except (KeyError, IndexError, TypeError):
            node = None
    return tuple(keys)


def _shown(text: str, most: int) -> str:
    """``text`` on one line and not longer than ``most``."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _message(exc: ValidationError, data: dict[Any, Any], source: str, text: str | None) -> str:
    errors = exc.errors(include_url=False, include_context=False)
    what = readable(errors[0])
    keys = _keys_in(data, errors[0]["loc"])
    if keys and keys[-1] == "[key]":  # pydantic's way to say that the key itself is wrong
        keys, what = keys[:-1], f"this key is not allowed: {what}"
    head, colon, rest = what.partition(": ")
    if not keys and colon and head.split(".")[0] in data:  # a check of the whole file that names its key ("rows.3: ...")
        keys, what = tuple(int(part) if part.isdigit() else part for part in head.split(".")), rest
    line = line_of_key(text, keys) if text is not None else None
    where = f"{source}:{line}" if line else source
    key = _shown(".".join(str(item) for item in keys), 120)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {key + ': ' if key else ''}{what[:200]}{more}"
