"""The op table: every op by name. One file per op or tight family; each lists its TEMPLATES."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from umd_core.errors import UnknownOpError
from umd_core.template import OpTemplate

OPS: dict[str, OpTemplate] = {
    template.name: template
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    for template in importlib.import_module(f"{__name__}.{module.name}").TEMPLATES
}
"""Every op by name."""

CHECKS = frozenset(name for name, template in OPS.items() if template.checks)
"""Ops that run whether their outputs are read or not."""


def op_template(name: str) -> OpTemplate:
    """Returns the template of an op.

    Raises:
        UnknownOpError: no such op; its nearest names are given.
    """
    template = OPS.get(name)
    if template is None:
        raise UnknownOpError(name, difflib.get_close_matches(name, OPS, n=3, cutoff=0.5))
    return template


__all__ = ["CHECKS", "OPS", "op_template"]
