"""Priority lists of devices: kernels that the first lacks run on the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.device_samples import HostDevice, bound, contents, example_device, example_module
from umd_core import dtypes
from umd_core.device import Caps, CompositeDevice
from umd_core.errors import IndexRangeError, UnsupportedError
from umd_core.kernels import BY_NAME
from umd_core.testing.harness import check_launch
from umd_core.testing.launches import Plan, build
from umd_core.testing.recording import Recording


def partial(*kernels: str) -> Any:
    """Returns an example device that has only some of its kernels."""

    class Partial(example_module().ExampleDevice):  # type: ignore[misc]  # the example is imported by path
        def caps(self) -> Caps:
            return Caps(dict.fromkeys(kernels), memory=1 << 24)

    return Partial("partial:0")


def test_crossings_are_counted_and_named() -> None:
    device = CompositeDevice([partial("elementwise_add_kernel"), example_device()])
    rng = np.random.default_rng(0)
    for name in ("elementwise_add_kernel", "elementwise_mul_kernel", "reduce_sum_kernel"):
        check_launch(device, build(rng, BY_NAME[name], (dtypes.float32,), Plan("ordinary", "negative")))
    assert device.crossings == {
        ("elementwise_mul_kernel", ("float32",), "example:0"): 3,
        ("reduce_sum_kernel", ("float32",), "example:0"): 3,
    }
    assert device.name == "partial:0,example:0"


@pytest.mark.parametrize("layout", ["gaps", "overlapping"])
def test_crossing_keeps_what_the_kernel_does_not_write(layout: str) -> None:
    device = CompositeDevice([HostDevice(), example_device()])
    rng = np.random.default_rng(1)
    for name in ("scatter_add_kernel", "elementwise_neg_kernel", "argmax_kernel"):
        row = BY_NAME[name]
        types = tuple(allowed[0] for _, allowed in row.types)
        check_launch(device, build(rng, row, types, Plan("ordinary", layout, alias=True)))
    assert sum(device.crossings.values()) == 9


def test_caps_prefer_decompositions_on_the_first() -> None:
    class Whole(HostDevice):
        def caps(self) -> Caps:
            return Caps(dict.fromkeys(BY_NAME))

    device = CompositeDevice([partial("gemm_kernel"), Whole()])
    caps = device.caps()
    assert caps.supports("reduce_sum_kernel", (dtypes.float32,))
    assert not caps.supports("conv_kernel", (dtypes.float32,))
    assert device.supports("conv_kernel", (dtypes.float32,))
    assert caps.memory == 1 << 24


def test_caps_join_types() -> None:
    class Some(HostDevice):
        def __init__(self, *allowed: Any) -> None:
            self.allowed = allowed
            super().__init__()

        def caps(self) -> Caps:
            return Caps({"gemm_kernel": frozenset((t,) for t in self.allowed)})

    device = CompositeDevice([Some(dtypes.float32), Some(dtypes.float16)])
    assert [device.caps().supports("gemm_kernel", (t,)) for t in (dtypes.float32, dtypes.float16, dtypes.int8)] == [
        True, True, False,
    ]  # fmt: skip
    with pytest.raises(UnsupportedError):
        device.load(gather_program())


def gather_program() -> Any:
    record = BY_NAME["gather_kernel"].record((dtypes.float32, dtypes.int64), (1,))
    recording = Recording()
    data, index, out = (recording.argument() for _ in range(3))
    parameters = record.pack(
        extents=(2,), axis=3, data_offset=0, data_strides=(0, 1), index_offset=0, index_strides=(1,),
        out_offset=0, out_strides=(1,),
    )  # fmt: skip
    recording.dispatch(record, parameters, [(data, 0, 12), (index, 0, 16), (out, 0, 8)])
    return recording.finish()


def test_errors_on_the_other_device_reach_the_ticket() -> None:
    device = CompositeDevice([HostDevice(), example_device()])
    program = device.load(gather_program())
    data = np.arange(3, dtype=np.float32)
    bindings = bound(device, data, np.array([1, 3]), np.zeros(2, np.float32))
    with pytest.raises(IndexRangeError) as caught:
        device.submit(program, bindings).wait()
    assert (caught.value.value, caught.value.command) == (3, 0)
    device.write(bindings[1].buffer, 0, np.array([2, -3]))
    device.submit(program, bindings).wait()
    assert contents(device, bindings[2]) == np.array([2, 0], np.float32).tobytes()
