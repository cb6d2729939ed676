"""The encoded form of command buffers: docs/command-buffer.md in code."""

from __future__ import annotations

from umd_core.encoding.compare import Difference, diff
from umd_core.encoding.decode import decode, validate
from umd_core.encoding.encode import encode
from umd_core.encoding.layout import LIBRARY_LIMITS, SERVICE_LIMITS, VERSION, Limits
from umd_core.encoding.original import OriginalBuffer, decode_original, encode_original, is_original
from umd_core.encoding.patch import PatchPlan, apply_patches
from umd_core.encoding.rules import RULES, Rule
from umd_core.encoding.verify import MissingDependency, Report, verify, verify_dependencies

__all__ = [
    "LIBRARY_LIMITS",
    "RULES",
    "SERVICE_LIMITS",
    "VERSION",
    "Difference",
    "Limits",
    "MissingDependency",
    "OriginalBuffer",
    "PatchPlan",
    "Report",
    "Rule",
    "apply_patches",
    "decode",
    "decode_original",
    "diff",
    "encode",
    "encode_original",
    "is_original",
    "validate",
    "verify",
    "verify_dependencies",
]
