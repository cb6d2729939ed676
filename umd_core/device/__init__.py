"""What a backend offers: Device, Buffer, Fence, Ticket; and SequentialDevice, which supplies most of it."""

from __future__ import annotations

from umd_core.device.composite import CompositeDevice
from umd_core.device.estimation import Estimate, Estimates, Timeline
from umd_core.device.explanation import Choice, Explains
from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.order import legal_order
from umd_core.device.program import Program, Step
from umd_core.device.protocol import (
    API,
    Available,
    BackendInfo,
    Binding,
    Buffer,
    Caps,
    Device,
    DeviceFence,
    FenceValue,
    Ticket,
    Unavailable,
)
from umd_core.device.sequential import SequentialDevice
from umd_core.device.tensor import Storage, Tensor

__all__ = [
    "API",
    "Available",
    "BackendInfo",
    "Binding",
    "Buffer",
    "Caps",
    "Choice",
    "CompositeDevice",
    "Device",
    "DeviceFence",
    "Estimate",
    "Estimates",
    "Explains",
    "Fence",
    "FenceValue",
    "Program",
    "SequentialDevice",
    "Step",
    "Storage",
    "SubmissionTicket",
    "Tensor",
    "Ticket",
    "Timeline",
    "Unavailable",
    "legal_order",
]
