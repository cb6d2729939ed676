"""Whether the installed grpcio and protobuf can run the generated modules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

NEEDED: Mapping[str, tuple[int, ...]] = {"grpcio": (1, 85, 1), "protobuf": (7, 35, 1)}
"""The oldest versions that run the modules under `_pb`, as their generator states them."""


def check_versions(needed: Mapping[str, tuple[int, ...]] = NEEDED) -> None:
    """Checks the installed versions.

    Raises:
        ImportError: one is missing or too old; the message has the command that mends it.
    """
    unfit = [f"{name} {found}" for name, least in needed.items() if _numbers(found := _installed(name)) < least]
    if unfit:
        wanted = " ".join(f"'{name}>={'.'.join(map(str, least))}'" for name, least in needed.items())
        raise ImportError(f"umd_grpc cannot run with {' and '.join(unfit)}; mend it with: pip install {wanted}")


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, () when there are none."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
