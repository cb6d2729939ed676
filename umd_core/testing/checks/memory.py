"""What a device says about itself; buffers, tensors, and errors about them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from umd_core import dtypes
from umd_core.device import Caps, Device
from umd_core.errors import (
    BindingError,
    DTypeError,
    InputCountError,
    OutOfMemoryError,
    ShapeError,
    StaleHandleError,
    UmdError,
    UnsupportedError,
)
from umd_core.ir import TensorDesc
from umd_core.kernels import BY_NAME
from umd_core.testing.checks.tools import Check, copying, raises, same
from umd_core.testing.harness import record_launch
from umd_core.testing.launches import Plan, build, type_arguments


def check_caps(caps: Caps, unsupported: Mapping[str, str]) -> None:
    """Checks names and types against the table, and the list of what is missing at level 0."""
    for name, allowed in caps.kernels.items():
        if name not in BY_NAME:
            raise AssertionError(f"caps names {name}, which is not in the kernel table")
        wrong = set(allowed or ()) - set(type_arguments(BY_NAME[name]))
        if wrong:
            raise AssertionError(f"caps names types of {name} that the table does not have: {sorted(map(str, wrong))}")
    missing = {name for name, row in BY_NAME.items() if row.level == 0 and name not in caps.kernels}
    unlisted, present = sorted(missing - set(unsupported)), sorted(set(unsupported) & set(caps.kernels))
    if unlisted:
        raise AssertionError(f"level-0 kernels are missing and not listed as unsupported: {', '.join(unlisted)}")
    if present:
        raise AssertionError(f"listed as unsupported, but caps has them: {', '.join(present)}")
    if caps.memory <= 0 or caps.max_work <= 0:
        raise AssertionError(f"memory {caps.memory} and max_work {caps.max_work} must be positive")


def check_refusal(device: Device) -> None:
    """Loads, for every kernel, a program with the first types that the device lacks."""
    caps = device.caps()
    for row in BY_NAME.values():
        lacking = next((types for types in type_arguments(row) if not caps.supports(row.name, types)), None)
        if lacking is None:
            continue
        launch = build(np.random.default_rng(0), row, lacking, Plan("ones"))
        with raises(UnsupportedError) as caught:
            device.load(bytes(record_launch(launch)))
        same(caught.error.kernel, row.name, "kernel that the error names")


def round_trip(device: Device) -> None:
    """Bytes come back as they went, at any offset; zero bytes too."""
    buffer = device.allocate(100)
    data = np.arange(100, dtype=np.uint8)
    device.write(buffer, 0, data)
    device.write(buffer, 10, b"abc")
    device.write(buffer, 100, b"")
    same(bytes(device.read(buffer, 9, 5)), b"\x09abc\x0d", "read")
    same(bytes(device.read(buffer, 100, 0)), b"", "empty read")
    device.write(buffer, 20, np.arange(5, dtype="<i4"))
    same(bytes(device.read(buffer, 24, 4)), b"\x01\0\0\0", "array written")
    device.free(buffer)
    device.free(device.allocate(0))


def outside(device: Device) -> None:
    """Reads and writes outside a buffer are refused."""
    buffer = device.allocate(16)
    for offset, size in ((0, 17), (16, 1), (-1, 2), (8, 2**62), (2**63, 1)):
        with raises(BindingError, ShapeError):
            device.read(buffer, offset, size)
    for offset in (1, -1, 2**63):
        with raises(BindingError, ShapeError):
            device.write(buffer, offset, bytes(16))
    device.free(buffer)


def stale(device: Device) -> None:
    """A freed buffer is refused by name."""
    buffer = device.allocate(16)
    device.free(buffer)
    for use in (lambda: device.free(buffer), lambda: device.read(buffer, 0, 1), lambda: device.write(buffer, 0, b"x")):
        with raises(StaleHandleError):
            use()


def out_of_memory(device: Device) -> None:
    """More than the device has is refused with the figures, and does no harm."""
    capacity = device.caps().memory
    with raises(OutOfMemoryError) as caught:
        device.allocate(capacity + 1)
    same((caught.error.asked, caught.error.capacity), (capacity + 1, capacity), "figures")
    device.free(device.allocate(64))


def tensors(device: Device) -> None:
    """Arrays of every type come back equal, strided and empty ones too."""
    generator = np.random.default_rng(0)
    for dtype in dtypes.ALL:
        for shape in ((), (3,), (2, 0, 3), (4, 5)):
            array = generator.integers(0, 2, shape).astype(dtype.numpy)
            for view in (array, array.T, array[::-1] if shape else array):
                got = device.tensor(view).numpy()
                same((got.shape, got.dtype), (view.shape, view.dtype), f"{dtype} tensor")
                same(got.tobytes(), view.tobytes(), f"{dtype} tensor {shape}")


def dlpack(device: Device) -> None:
    """Tensors pass to NumPy by DLPack and outlive their device handle."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen = np.from_dlpack(device.tensor(array))
    for _ in range(3):
        device.tensor(np.full((3, 4), 9, np.float32))
    same(seen.tolist(), array.tolist(), "DLPack view")


def run_checks_inputs(device: Device) -> None:
    """`run` takes host arrays and tensors, in any layout, and names what does not fit."""
    command_buffer = copying(24).finish()
    desc = TensorDesc("f32", (2, 3))
    command_buffer.inputs, command_buffer.outputs = [desc], [desc]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (x, np.asfortranarray(x), device.tensor(x), device.run(command_buffer, [x])[0], x.tolist()):
        if isinstance(given, list):
            with raises(DTypeError):
                device.run(command_buffer, [given])
            continue
        (out,) = device.run(command_buffer, [given])
        same(out.numpy().tolist(), x.tolist(), "run")
    with raises(InputCountError):
        device.run(command_buffer, [])
    with raises(ShapeError) as caught:
        device.run(command_buffer, [x.T])
    same((caught.error.input, caught.error.shapes), ("0", [[3, 2], [2, 3]]), "facts")
    with raises(DTypeError):
        device.run(command_buffer, [x.astype(np.float64)])


def bad_bytes(device: Device) -> None:
    """Bytes that are no command buffer raise a typed error and leave the device usable."""
    raw = bytes(copying().finish())
    for wrong in (b"", b"UMDCMD", raw[:-1], raw + b"\0", bytes(len(raw)), raw[:80] + b"\xff" + raw[81:]):
        with raises(UmdError):
            device.load(wrong)
    device.load(raw)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        round_trip, outside, stale, out_of_memory, tensors, dlpack, run_checks_inputs, bad_bytes,
    )
}  # fmt: skip
