"""SimDevice: options, memory, host arrays without a copy, errors, warnings."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.errors import (
    AttributeValueError,
    IndexRangeError,
    OutOfMemoryError,
    PoisonedError,
    Status,
    UnsupportedError,
)
from umd_core.kernels import BY_NAME, KERNELS
from umd_core.testing.recording import Recording
from umd_sim.device import SimDevice
from umd_sim.lowerings import LOWERINGS, lowering_of
from umd_sim.options import Options, parse
from umd_sim.scratch import KEPT, Scratch, aligned


def test_lowerings_cover_the_table_exactly() -> None:
    assert [row.name for row in KERNELS.values() if lowering_of(row) is None] == []
    wanted = {row.name if row.name in LOWERINGS else row.family for row in KERNELS.values()}
    assert set(LOWERINGS) == wanted
    assert all(row.abi == 1 for row in KERNELS.values()), "a newer abi needs lowerings by (name, abi)"


def test_caps_name_every_kernel() -> None:
    caps = SimDevice().caps()
    assert set(caps.kernels) == set(BY_NAME)
    assert {"map", "trim"} <= caps.flags
    assert all(caps.supports(row.name, tuple(types[0] for _, types in row.types)) for row in KERNELS.values())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Options()),
        ("0", Options()),
        ("3", Options(ordinal=3)),
        ("0?strict=1&seed=7", Options(strict=True, seed=7)),
        ("1?memory=2GiB&threads=2", Options(ordinal=1, memory=2 << 30, threads=2)),
        ("?memory=512", Options(memory=512)),
        ("0?memory=3kib&strict=0", Options(memory=3 << 10)),
    ],
)
def test_options(text: str, wanted: Options) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        ("0?sede=1", "sede"), ("0?seed=-1", "seed"), ("0?seed=1KiB", "seed"), ("0?strict=yes", "strict"),
        ("0?strict=2", "strict"), ("0?memory=", "memory"), ("0?memory=1GB", "memory"), ("0?threads=1.5", "threads"),
        ("0?memory=\u0663", "memory"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(text: str, attribute: str) -> None:
    with pytest.raises(AttributeValueError) as caught:
        umd.open_device(f"sim:{text}")
    assert caught.value.facts()["attribute"] == attribute
    assert "strict" in caught.value.facts()["wanted"]


@pytest.mark.parametrize("ordinal", ["8", "-1", "x", "0x1", "\u0661"])
def test_wrong_ordinals_are_unsupported(ordinal: str) -> None:
    with pytest.raises(UnsupportedError, match="0 to 7"):
        umd.open_device(f"sim:{ordinal}")


def test_host_arrays_are_bound_without_a_copy() -> None:
    device = SimDevice()
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2]
    buffer = device.wrap(array)
    assert device.used == 0
    assert np.shares_memory(buffer.memory, array)
    tensor = device.run(umd.translate("Relu", [np.ones(4, np.float32)]), [np.ones(4, np.float32)])[0]
    first, second = tensor.numpy(), tensor.numpy()
    assert np.shares_memory(first, second)


def test_read_only_host_arrays_are_good_inputs() -> None:
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    (y,) = SimDevice().run(umd.translate("Add", [x, x]), [x, x])
    np.testing.assert_array_equal(y.numpy(), 2 * x)


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 1 << 20])
def test_memory_is_aligned_and_zero(size: int) -> None:
    memory = aligned(size)
    assert memory.size == size
    assert memory.__array_interface__["data"][0] % 64 == 0
    assert not memory.any()


def test_memory_is_limited() -> None:
    device = umd.open_device("sim:0?memory=1KiB")
    held = device.allocate(1000)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(25)
    assert (caught.value.facts()["asked"], caught.value.facts()["capacity"]) == (25, 1024)
    device.free(held)
    assert device.allocate(1024).size == 1024


def test_more_than_the_host_has_is_out_of_memory() -> None:
    device = umd.open_device(f"sim:0?memory={1 << 62}")
    with pytest.raises(OutOfMemoryError):
        device.allocate(1 << 61)


def test_scratch_grows_keeps_and_gives_back() -> None:
    scratch = Scratch(limit=KEPT * 2)
    small = scratch.take(2, (3, 5), np.dtype(np.float64))
    assert small.shape == (3, 5)
    assert scratch.take(2, (7,), np.dtype(np.int8)).base is small.base
    assert scratch.take(2, (5000,), np.dtype(np.float64)).base is not small.base
    kept = scratch.used
    assert scratch.take(0, (KEPT + 1,), np.dtype(np.uint8)).size == KEPT + 1
    assert scratch.used == kept
    with pytest.raises(OutOfMemoryError):
        scratch.take(0, (KEPT * 2 + 1,), np.dtype(np.uint8))
    scratch.trim()
    assert scratch.used == 0


def windows(channels: int, side: int) -> tuple[umd.CommandBuffer, list[Any]]:
    """Returns a program whose launches in the middle take scratch memory and stay bound, and its inputs."""
    rng = np.random.default_rng(side)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((1, 4, side, side), (channels, 2, 3, 3))]
    graph = umd.Graph()
    x, w = (graph.input(name, umd.TensorDesc.of(array)) for name, array in zip("xw", arrays, strict=True))
    y = graph.add("Conv", [x, w], {"group": 2, "pads": [1] * 4})
    y = graph.add("Softmax", [graph.add("Gelu", [y])], {"axis": 1})
    graph.output(graph.add("Neg", [y]))
    return umd.translate(graph), arrays


def test_launches_that_were_bound_before_scratch_memory_grew_still_run() -> None:
    device = SimDevice()
    programs = [windows(2, 5), windows(40, 9), windows(8, 60)]
    held = [(cb, [device.tensor(array) for array in arrays]) for cb, arrays in programs]
    wanted = [SimDevice().run(cb, arrays)[0].numpy().copy() for cb, arrays in programs]
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        for at in order:
            np.testing.assert_array_equal(device.run(*held[at])[0].numpy(), wanted[at])


def test_no_warning_escapes() -> None:
    device = SimDevice()
    x = np.array([0.0, -1.0, np.nan, np.inf, 1e38], np.float32)
    z = np.array([1, 0, -128], np.int8)
    zeros = np.zeros_like(x), np.zeros_like(z)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for op, inputs in (("Div", [x, zeros[0]]), ("Log", [x]), ("Exp", [x]), ("Sqrt", [x]), ("Div", [z, zeros[1]])):
            device.run(umd.translate(op, inputs), inputs)[0].numpy()


def gather(device: Any, index: int) -> tuple[Any, Any]:
    record = BY_NAME["gather_kernel"].record((umd.dtype("f32"), umd.dtype("i64")), (1,))
    block = record.pack(
        extents=(2,), axis=4, data_offset=0, data_strides=(0, 1), index_offset=0, index_strides=(1,), out_offset=0,
        out_strides=(1,),
    )  # fmt: skip
    recording = Recording()
    data, at, out = recording.argument(), recording.argument(), recording.argument()
    recording.nop()
    recording.mark("layer 3")
    recording.dispatch(record, block, [(data, 0, 16), (at, 0, 16), (out, 0, 8)])
    program = device.load(recording.finish())
    tensors = [
        device.tensor(np.arange(4, dtype=np.float32)),
        device.tensor(np.array([1, index])),
        device.tensor(np.zeros(2, np.float32)),
    ]
    return device.submit(program, [t.binding for t in tensors]), tensors[2]


def test_an_index_out_of_range_names_command_and_value() -> None:
    ticket, out = gather(SimDevice(), 4)
    with pytest.raises(IndexRangeError) as caught:
        ticket.wait()
    facts = caught.value.facts()
    assert (facts["command"], facts["value"], facts["extent"], facts["mark"]) == (2, 4, 4, "layer 3")
    assert caught.value.status == Status.INDEX_OUT_OF_RANGE
    with pytest.raises(PoisonedError):
        out.numpy()
    ticket, out = gather(SimDevice(), -4)
    ticket.wait()
    np.testing.assert_array_equal(out.numpy(), [1.0, 0.0])


def test_dispatch_runs_a_kernel_directly() -> None:
    device = SimDevice()
    record = BY_NAME["elementwise_div_kernel"].record((umd.dtype("f32"),), (1,))
    fields = {
        f"{name}_{part}": value for name in ("a", "b", "out") for part, value in (("offset", 0), ("strides", (1,)))
    }
    block = record.pack(extents=(3,), **fields)
    tensors = [device.tensor(np.array(v, np.float32)) for v in ([1, 0, -1], [0, 0, 2], [0, 0, 0])]
    launch = record.geometry(record.struct.unpack(block))
    device.dispatch(device.load_kernel(record, block), launch, block, [t.binding for t in tensors])
    np.testing.assert_array_equal(tensors[2].numpy(), np.array([np.inf, np.nan, -0.5], np.float32))


def test_devices_on_many_threads_do_not_disturb_each_other() -> None:
    x = np.linspace(-3, 3, 5000, dtype=np.float32)
    cb = umd.translate("Gelu", [x])
    wanted = SimDevice().run(cb, [x])[0].numpy().copy()
    wrong: list[int] = []

    def work(number: int) -> None:
        device = SimDevice(Options(ordinal=number))
        for turn in range(20):
            shifted = np.roll(x, number + turn)
            if not np.array_equal(device.run(cb, [shifted])[0].numpy(), np.roll(wanted, number + turn)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_plugin_loads_nothing_until_a_device_is_opened() -> None:
    heavy = ("umd_sim.device", "umd_sim.lowerings", "threadpoolctl")
    code = f"import sys, umd_sim.plugin as p; p.probe(); print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
