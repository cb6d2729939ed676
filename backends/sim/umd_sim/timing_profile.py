"""Profiles: the numbers of a device that its time estimates are made of, in TOML files."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from umd_core import dtypes
from umd_core.errors import AttributeValueError, ConfigError
from umd_core.kernels import KERNELS
from umd_core.kernels.costs import FUNCTIONS

SUFFIX = ".toml"
ANY = "any"
"""The function whose rate stands for those that a profile does not name."""
UNKNOWN_ERROR = "nobody compared these estimates with the device"


class Cache(NamedTuple):
    """A bandwidth in bytes a second that holds while all that a launch touches is at most `size` bytes."""

    size: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A device as numbers.

    Attributes:
        name: what it is.
        source: where the numbers come from.
        error: how far off estimates are known to be.
        memory: bytes.
        bandwidth: of the memory, in bytes a second, reads and writes together.
        granule: bytes of the smallest piece that memory is read and written in.
        caches: smaller and faster memories, the smallest first.
        launch: seconds that every command takes before its work begins.
        launches: the same by kernel family, where it is known to differ.
        processors: how many parts run workgroups.
        workgroups, invocations: most of them that a processor holds at once.
        workgroup_memory: bytes of it that a processor has.
        products: operations a second of matrix products by element type, two a multiply-add.
        arithmetic: other operations a second by element type.
        functions: functions a second by name (`umd_core.kernels.costs.FUNCTIONS`); "any" for the others.
        efficiency: how many times as fast as its roof a kernel family was measured to be; 1 where not given.
    """

    name: str
    source: str
    memory: int
    bandwidth: float
    launch: float
    processors: int
    workgroups: int
    invocations: int
    workgroup_memory: int
    products: Mapping[str, float]
    arithmetic: Mapping[str, float]
    functions: Mapping[str, float]
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    efficiency: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    caches: tuple[Cache, ...] = ()
    granule: int = 1
    error: str = UNKNOWN_ERROR


def packaged() -> list[str]:
    """Returns the names of the profiles that come with the simulator."""
    return sorted(file.name.removesuffix(SUFFIX) for file in _folder().iterdir() if file.name.endswith(SUFFIX))


def _folder() -> Any:
    return resources.files("umd_sim") / "profiles"


def read_profile(name: str) -> Profile:
    """Returns a profile: one of `packaged` by name, or that in a TOML file by path.

    Raises:
        AttributeValueError: it is neither.
        ConfigError: the file is no profile; everything that is wrong with it is listed.
        OSError: the file cannot be read.
    """
    if name.lower() in packaged():
        return parse_profile((_folder() / f"{name.lower()}{SUFFIX}").read_text(encoding="utf-8"), name)
    if not name.endswith(SUFFIX):
        wanted = f"{', '.join(packaged())} or the path of a {SUFFIX} file"
        raise AttributeValueError("device sim", "profile", f"there is no profile {name!r}", value=name, wanted=wanted)
    return parse_profile(Path(name).read_text(encoding="utf-8"), name)


def parse_profile(text: str, file: str) -> Profile:
    """Returns the profile that a TOML text is.

    Raises:
        ConfigError: it is none; everything that is wrong with it is listed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, [f"is not TOML: {error}"]) from error
    problems = list(_problems(document))
    if problems:
        raise ConfigError(file, problems)
    return _built(document)


# what a file holds

Check = Callable[[Any], str]


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a text"


def _positive(value: Any) -> str:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "" if known and 0 < value < float("inf") else "a number above 0"


def _whole(value: Any) -> str:
    known = isinstance(value, int) and not isinstance(value, bool)
    return "" if known and value > 0 else "a whole number above 0"


def _seconds(value: Any) -> str:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "" if known and 0 <= value < float("inf") else "a number of at least 0"


def _caches(value: Any) -> str:
    wanted = "a list like [{ size = 1_048_576, bandwidth = 2e10 }], the smallest first"
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return wanted
    known = all(
        item.keys() == {"size", "bandwidth"} and not _whole(item["size"]) and not _positive(item["bandwidth"])
        for item in value
    )
    return "" if known and sorted(value, key=lambda item: item["size"]) == value else wanted


_FIELDS: Mapping[str, tuple[Check, bool]] = {
    "name": (_text, True),
    "source": (_text, True),
    "error": (_text, False),
    "memory.size": (_whole, True),
    "memory.bandwidth": (_positive, True),
    "memory.granule": (_whole, False),
    "memory.caches": (_caches, False),
    "launch.seconds": (_seconds, True),
    "processors.count": (_whole, True),
    "processors.workgroups": (_whole, True),
    "processors.invocations": (_whole, True),
    "processors.workgroup_memory": (_whole, True),
}
"""Each key: how it is checked, and whether it has to be there."""
_FAMILIES = tuple(sorted({row.family for row in KERNELS.values()}))
_TABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "products": (tuple(dtypes.BY_NAME), "float32"),
    "arithmetic": (tuple(dtypes.BY_NAME), "float32"),
    "functions": ((*sorted(FUNCTIONS), ANY), ANY),
    "launches": (_FAMILIES, ""),
    "efficiency": (_FAMILIES, ""),
}
"""Each table of numbers: the keys that it may have, and the one that it must have ("": none)."""


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with a file, a line each."""
    flat = dict(_flattened(document))
    for key, (check, needed) in _FIELDS.items():
        if key not in flat:
            if needed:
                yield f"{key} is missing: {check(None)} would be right"
        elif wanted := check(flat[key]):
            yield f"{key} is {flat[key]!r}: {wanted} would be right"
    for table, (allowed, needed_key) in _TABLES.items():
        if needed_key and f"{table}.{needed_key}" not in flat:
            yield f"{table}.{needed_key} is missing: {_positive(None)} would be right"
        for key, value in flat.items():
            own = key.removeprefix(f"{table}.")
            if key.startswith(f"{table}.") and own in allowed and (wanted := _positive(value)):
                yield f"{key} is {value!r}: {wanted} would be right"
    known = [*_FIELDS, *(f"{table}.{key}" for table, (allowed, _) in _TABLES.items() for key in allowed)]
    for key in flat:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            yield f"{key} is unknown" + (f"; did you mean {near[0]}?" if near else "")


def _flattened(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{own}", inner) for own, inner in value.items())
        else:
            yield key, value


def _built(document: Mapping[str, Any]) -> Profile:
    memory, processors = document["memory"], document["processors"]
    return Profile(
        name=document["name"],
        source=document["source"],
        error=document.get("error", UNKNOWN_ERROR),
        memory=memory["size"],
        bandwidth=float(memory["bandwidth"]),
        granule=memory.get("granule", 1),
        caches=tuple(Cache(item["size"], float(item["bandwidth"])) for item in memory.get("caches", ())),
        launch=float(document["launch"]["seconds"]),
        processors=processors["count"],
        workgroups=processors["workgroups"],
        invocations=processors["invocations"],
        workgroup_memory=processors["workgroup_memory"],
        products=document["products"],
        arithmetic=document["arithmetic"],
        functions=document["functions"],
        launches=document.get("launches", {}),
        efficiency=document.get("efficiency", {}),
    )


def write_profile(profile: Profile) -> str:
    """Returns a profile as the text of a file that `parse_profile` reads."""
    caches = ", ".join(f"{{ size = {cache.size}, bandwidth = {cache.bandwidth:.4g} }}" for cache in profile.caches)
    lines = [
        *(f"{key} = {_quoted(text)}" for key, text in _texts(profile)),
        "",
        "[memory]",
        f"size = {profile.memory}",
        f"bandwidth = {profile.bandwidth:.4g}",
        f"granule = {profile.granule}",
        f"caches = [{caches}]",
        "",
        "[launch]",
        f"seconds = {profile.launch:.4g}",
        "",
        "[processors]",
        f"count = {profile.processors}",
        f"workgroups = {profile.workgroups}",
        f"invocations = {profile.invocations}",
        f"workgroup_memory = {profile.workgroup_memory}",
    ]
    for table in _TABLES:
        rates: Mapping[str, float] = getattr(profile, table)
        lines += ["", f"[{table}]", *(f"{key} = {rate:.4g}" for key, rate in rates.items())]
    return "\n".join(lines) + "\n"


def _texts(profile: Profile) -> list[tuple[str, str]]:
    return [("name", profile.name), ("source", profile.source), ("error", profile.error)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'
