"""The flags of `python -m umd_grpc.server`, made from the table of fields."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from umd_grpc.config.fields import FIELDS
from umd_grpc.config.load import effective
from umd_grpc.config.units import SWITCH, TEXTS


def from_arguments(arguments: Sequence[str] | None) -> dict[str, Any]:
    """Returns every value that a command line, and the file that it names, come to; see `effective`."""
    parser = argparse.ArgumentParser(prog="python -m umd_grpc.server", description="Serve devices over gRPC.")
    parser.add_argument("--config", help="a file of settings; flags override it")
    for key, field in FIELDS.items():
        action = {SWITCH.name: "store_true", TEXTS.name: "append"}.get(field.kind.name, "store")
        parser.add_argument(*field.options, dest=key, action=action, default=None, help=field.meaning)
    given = vars(parser.parse_args(arguments))
    path = given.pop("config")
    return effective(path, {key: value for key, value in given.items() if value is not None})
