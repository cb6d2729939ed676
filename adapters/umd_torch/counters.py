"""What the adapter did since the counters were last reset: transfers, submissions, fallbacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts of one process.

    Attributes:
        recompiles: graphs that torch traced again, because something of the call before did not hold any more.
        programs: command buffers translated and loaded.
        submissions: programs submitted.
        round_trips: times the adapter waited for bytes of a device.
        bytes_up, bytes_down: tensor bytes written to and read from devices (not those bound in place).
        uploads: parameters and buffers sent, first time or after a change.
        returned: inputs that were results of an earlier call and had stayed on the device: not sent.
        stale: uploads because the bytes had changed although the version had not (`.data`, NumPy).
        handles: results that stayed on the device for the backward graph.
        materialised: handles that something on the CPU wanted to see.
        fallbacks: calls of nodes that ran on the CPU, by op.
    """

    recompiles: int = 0
    programs: int = 0
    submissions: int = 0
    round_trips: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    uploads: int = 0
    returned: int = 0
    stale: int = 0
    handles: int = 0
    materialised: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)

    def reset(self) -> None:
        """Sets every count to zero."""
        fresh = Counters()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))


counters = Counters()
"""The counts of this process."""
