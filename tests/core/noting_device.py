"""NotingDevice, which notes what it is asked to load and to bind, and programs for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.core.device_samples import HostDevice
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Patch
from umd_core.device import Binding, Caps
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.recording import Recording

SGD = BY_NAME["sgd_kernel"].record((dtypes.float32,), (1,))
NEG = BY_NAME["elementwise_neg_kernel"].record((dtypes.int32,), (1,))


class NotingDevice(HostDevice):
    """Notes which kernels are loaded and bound; a call appends its parameters to `ran`."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.binds = 0
        self.ran: list[bytes] = []
        self.trouble: Exception | None = None
        super().__init__()

    def caps(self) -> Caps:
        return Caps({"sgd_kernel": None, "elementwise_neg_kernel": None}, flags=frozenset({"map"}))

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        self.loaded.append(parameters)
        return record

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        self.binds += 1
        if self.trouble:
            raise self.trouble
        return lambda: self.ran.append(parameters)


def sgd(decay: float = 0.0) -> bytes:
    return SGD.pack(
        extents=(4,), p_offset=0, p_strides=(1,), g_offset=0, g_strides=(1,), lr_offset=0, weight_decay=decay
    )


def negation(count: int = 4) -> bytes:
    return NEG.pack(extents=(count,), x_offset=0, x_strides=(1,), out_offset=0, out_strides=(1,))


def sgd_program(decays: Sequence[float], patches: Sequence[Patch] = ()) -> CommandBuffer:
    recording = Recording()
    p, g, lr = (recording.argument() for _ in range(3))
    for decay in decays:
        recording.dispatch(SGD, sgd(decay), [(p, 0, 16), (g, 0, 16), (lr, 0, 4)])
    return recording.finish(patches=patches)


def negations(pairs: Sequence[tuple[int, int]], slots: int) -> CommandBuffer:
    recording = Recording()
    numbers = [recording.argument() for _ in range(slots)]
    for source, target in pairs:
        recording.dispatch(NEG, negation(), [(numbers[source], 0, 16), (numbers[target], 0, 16)])
    return recording.finish()
