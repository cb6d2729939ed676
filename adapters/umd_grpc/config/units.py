"""Values as people write them: "8GiB", "30s", "0600"."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

_SIZES: Mapping[str, int] = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SECONDS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000), "": Fraction(1), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600),
    "d": Fraction(86_400),
}  # fmt: skip
_AMOUNT = re.compile(r"(\d{1,19}(?:\.\d{1,9})?) ?([A-Za-z]*)", re.ASCII)
_TEXT_LIMIT = 4_096


class Kind(NamedTuple):
    """How the values of a field are written.

    Attributes:
        name: for the documentation.
        read: returns the value of what a file or a flag says; raises ValueError that says what would be right.
        show: returns the value as TOML.
    """

    name: str
    read: Callable[[Any], Any]
    show: Callable[[Any], str]


def _amount(value: Any, units: Mapping[str, int] | Mapping[str, Fraction], example: str) -> Fraction:
    """Returns a number times its unit."""
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in units:
        raise ValueError(f"is not an amount like {example}")
    return Fraction(found[1]) * units[found[2]]


def read_size(value: Any) -> int:
    """Returns bytes: an integer, or text like "8GiB".

    Raises:
        ValueError: it is something else.
    """
    size = _amount(value, _SIZES, '"8GiB", "64MiB" or a number of bytes')
    if size.denominator != 1:
        raise ValueError("is no whole number of bytes")
    return int(size)


def show_size(size: int) -> str:
    """Returns a size in its largest unit that divides it: "8GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZES[unit] == 0:
            return f"{size // _SIZES[unit]}{unit}"
    return f"{size}B"


def read_duration(value: Any) -> float:
    """Returns seconds: a number, or text like "30s", "500ms", "5m", "1h", "30d".

    Raises:
        ValueError: it is something else.
    """
    return float(_amount(value, _SECONDS, '"30s", "500ms", "1h" or a number of seconds'))


def show_duration(seconds: float) -> str:
    """Returns a duration in its largest unit that divides it: "30s"."""
    exact = Fraction(str(seconds))
    for unit in ("d", "h", "m", "s", "ms"):
        if exact and (exact / _SECONDS[unit]).denominator == 1:
            return f"{exact / _SECONDS[unit]}{unit}"
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def _read_count(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("is not a whole number")
    return value


def _read_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text in quotes")
    if len(value) > _TEXT_LIMIT or "\0" in value:
        raise ValueError(f"is longer than {_TEXT_LIMIT} characters, or has a zero in it")
    return value


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError('is not a list of texts like ["a", "b"]')
    return tuple(_read_text(item) for item in value)


def _read_mode(value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value, re.ASCII):
        raise ValueError('is not a file mode like "600" or "660"')
    return int(value, 8)


def _quoted(text: str) -> str:
    """Returns a TOML basic string."""
    escaped = "".join(
        f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else f"\\{c}" if c in '"\\' else c for c in text
    )
    return f'"{escaped}"'


def choice(*choices: str) -> Kind:
    """Returns the kind of values that are one of a few words."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return str(value)

    return Kind("word", read, _quoted)


TEXT = Kind("text", _read_text, _quoted)
PATH = Kind("path", _read_text, _quoted)
TEXTS = Kind("list of texts", _read_texts, lambda value: f"[{', '.join(map(_quoted, value))}]")
SWITCH = Kind("true or false", _read_switch, lambda value: str(value).lower())
COUNT = Kind("number", _read_count, str)
SIZE = Kind("size", read_size, lambda value: _quoted(show_size(value)))
DURATION = Kind("duration", read_duration, lambda value: _quoted(show_duration(value)))
MODE = Kind("file mode", _read_mode, lambda value: _quoted(f"{value:03o}"))
