"""Reading a configuration file: every problem at once, with its line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from umd_core.errors import ConfigError
from umd_grpc.addresses import is_local, is_unix, split_host
from umd_grpc.config.fields import FIELDS, defaults
from umd_grpc.files import read_limited

FILE_LIMIT = 1 << 20
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TABLE, _KEY = re.compile(r"\s*\[\s*([\w.-]+)\s*\]"), re.compile(r"\s*([\w.-]+)\s*=")


class Problem(NamedTuple):
    """What is wrong with a setting; `line` is 0 when the file has none for it."""

    line: int
    key: str
    what: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.key} {self.what}" if self.key else f"{where}{self.what}"


Values = Mapping[str, Any]


class Read(NamedTuple):
    """What a file says: its values and the line of each, by key, and what is wrong with single ones."""

    values: dict[str, Any]
    lines: dict[str, int]
    problems: list[Problem]


def read_file(path: str | Path) -> Read:
    """Returns what a file says.

    Raises:
        OSError: it cannot be read.
        LimitError: it is larger than 1 MiB.
    """
    try:
        text = read_limited(Path(path), FILE_LIMIT).decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        return Read({}, {}, [Problem(0, "", f"not UTF-8 at byte {error.start}")])
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        return Read({}, {}, [Problem(int(place[1]) if place and place[1] else 0, "", f"not TOML: {error}")])
    except RecursionError:
        return Read({}, {}, [Problem(0, "", "not TOML: nested too deeply")])
    lines, values, problems = _lines(text), dict[str, Any](), list[Problem]()
    for key, value in _flat(document):
        line = lines.get(key, 0)
        if key not in FIELDS:
            problems.append(Problem(line, key, _unknown(key)))
            continue
        try:
            values[key] = FIELDS[key].read(value)
        except ValueError as error:
            problems.append(Problem(line, key, str(error)))
    return Read(values, lines, problems)


def check_file(path: str | Path) -> list[Problem]:
    """Returns everything that is wrong with a file, in the order of its lines; see `read_file`."""
    read = read_file(path)
    merged = {**defaults(), **read.values}
    wrong = [*conflicts(merged), *(("listen", exposure(address)) for address in exposed(merged))]
    wrong += [(key, "names no file") for key in _FILES if merged[key] and not Path(merged[key]).expanduser().is_file()]
    return sorted([*read.problems, *(Problem(read.lines.get(key, 0), key, what) for key, what in wrong)])


def _flat(document: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (key, value); tables that hold fields are opened, everything else is a value."""
    for name, value in document.items():
        key = f"{table}{name}"
        if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in FIELDS):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _lines(text: str) -> dict[str, int]:
    """Returns the line of each key, as far as a look at the beginnings of lines tells."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = f"{match[1]}."
            found.setdefault(match[1], number)
        elif match := _KEY.match(line):
            found.setdefault(f"{table}{match[1]}", number)
    return found


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, FIELDS, 1, 0.5)
    return "is unknown" + (f"; did you mean {near[0]}?" if near else "; `umd config show` lists what there is")


_FILES = ("tls.cert", "tls.key", "tls.client_ca")
_RULES: tuple[tuple[str, Callable[[Values], bool], str], ...] = (
    ("tls.cert", lambda v: bool(v["tls.cert"]) and not v["tls.key"], "needs tls.key"),
    ("tls.key", lambda v: bool(v["tls.key"]) and not v["tls.cert"], "needs tls.cert"),
    ("tls.auto", lambda v: v["tls.auto"] and bool(v["tls.cert"]), "is not needed with tls.cert: leave one of them out"),
    (
        "tls.client_ca",
        lambda v: bool(v["tls.client_ca"]) and not encrypted(v),
        "needs TLS: give tls.cert and tls.key, or tls.auto",
    ),
    ("limits.inline", lambda v: v["limits.inline"] >= v["limits.message"], "must be less than limits.message"),
    ("limits.chunk", lambda v: v["limits.chunk"] >= v["limits.message"], "must be less than limits.message"),
)


def encrypted(values: Values) -> bool:
    """Returns whether TCP addresses are served with TLS."""
    return bool(values["tls.auto"] or values["tls.cert"])


def asks(values: Values) -> bool:
    """Returns whether clients are asked who they are."""
    return bool(values["tokens"]) or encrypted(values)


def conflicts(values: Values) -> list[tuple[str, str]]:
    """Returns (key, what is wrong) where settings do not fit together."""
    found = [(key, what) for key, broken, what in _RULES if broken(values)]
    return found + [("listen", what) for address in values["listen"] if (what := _listen_problem(address))]


def _listen_problem(address: str) -> str:
    if is_unix(address):
        return "" if address.partition(":")[2] else f"{address!r} has no path: write unix:/run/umd.sock"
    port = split_host(address)[1]
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        return f"{address!r} has no port: write host:port or unix:/path"
    return ""


def exposed(values: Values) -> list[str]:
    """Returns the addresses beyond loopback that anyone may use, or anyone may listen to."""
    if values["allow_insecure"] or (encrypted(values) and asks(values)):
        return []
    return [address for address in values["listen"] if not is_local(address)]


def exposure(address: str) -> str:
    """Returns what is wrong with listening on an address beyond loopback unprotected."""
    return (
        f"on {address} without TLS and a token lets anyone who reaches it use the devices; protect it (--auto-tls), "
        "allow it explicitly (--allow-insecure), or reach a loopback address through ssh -L"
    )


def effective(path: str | Path | None, flags: Values) -> dict[str, Any]:
    """Returns every value: a flag's, else the file's, else the default.

    Args:
        path: the file, None for none.
        flags: what the command line says, by key, as text, texts or True.

    Raises:
        ConfigError: something is wrong; it lists everything.
        OSError: the file cannot be read.
    """
    read = read_file(path) if path else Read({}, {}, [])
    if read.problems:
        raise ConfigError(str(path), [str(problem) for problem in sorted(read.problems)])
    given: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in flags.items():
        try:
            given[key] = FIELDS[key].read(value)
        except ValueError as error:
            problems.append(Problem(0, FIELDS[key].options[0], str(error)))
    merged = {**defaults(), **read.values, **given}
    problems += [Problem(0, key, what) for key, what in conflicts(merged)]
    if problems:
        raise ConfigError("", [str(problem) for problem in problems])
    return merged


def show(values: Values) -> str:
    """Returns the values as a file; what has no value is a comment."""
    lines: list[str] = []
    table = ""
    for key, field in FIELDS.items():
        head, _, name = key.rpartition(".")
        if head != table:
            lines += ["", f"[{head}]"]
            table = head
        shown = field.show(values[key])
        lines.append(f"{name} = {shown}" if shown else f"# {name} = ({field.kind.name})")
    return "\n".join(lines) + "\n"
