"""Capture a run, replay it elsewhere, compare two devices command by command: docs/bring-up.md."""

from __future__ import annotations

from umd_core.capture.comparison import STRATEGIES, compare
from umd_core.capture.device import OUTPUTS, CapturingDevice
from umd_core.capture.folder import LIMIT, Folder
from umd_core.capture.reader import Capture, ReadLimits, open_capture
from umd_core.capture.replaying import Mismatch, ReplayReport, replay
from umd_core.capture.report import ComparisonReport, Difference

__all__ = [
    "LIMIT",
    "OUTPUTS",
    "STRATEGIES",
    "Capture",
    "CapturingDevice",
    "ComparisonReport",
    "Difference",
    "Folder",
    "Mismatch",
    "ReadLimits",
    "ReplayReport",
    "compare",
    "open_capture",
    "replay",
]
