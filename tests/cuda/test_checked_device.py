"""cuda-cpu:0?checked=1: a part of the conformance kit passes on it, and faults planted in the driver are found."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.cuda.cuda_samples import ADD, SIZE, adding
from tests.cuda.kernel_runs import has_compiler, pick
from umd_core import dtypes
from umd_core.device import Binding, Program
from umd_core.errors import AttributeValueError, IndexRangeError, PoisonedError, UmdError
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.testing.checks import commands, failures, submissions
from umd_core.testing.conformance import PLANS
from umd_core.testing.harness import check_launch
from umd_core.testing.launches import build
from umd_core.testing.recording import Recording
from umd_cuda import plugin, pool, sources
from umd_cuda.checked import CheckedDevice
from umd_cuda.checked_driver import CheckedHostDriver
from umd_cuda.checked_launch import LaunchFaultError, Operand, pieces_of
from umd_cuda.device import Sources
from umd_cuda.driver import Call, Geometry
from umd_cuda.options import Options, parse
from umd_cuda.sources import KernelSource

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

GEMM = BY_NAME["gemm_kernel"].record((dtypes.float32,), (1,))
M, N, K = 5, 7, 3
SIZES = (4 * M * K, 4 * K * N, 4 * M * N)
BLOCK = GEMM.pack(
    batch=(1,), rows=M, columns=N, depth=K,
    a_offset=0, a_strides=(0, K, 1), b_offset=0, b_strides=(0, N, 1), out_offset=0, out_strides=(0, N, 1),
)  # fmt: skip
SIMPLE_ADD = """
struct Parameters { unsigned rank; unsigned long long extents[1]; long long places[6]; };
extern "C" __global__ void elementwise_add_kernel(const float* a, const float* b, float* out, const Parameters args) {
  const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.extents[0]) out[i] = a[i] + b[i];
}
"""


# what is right passes

FEW = (
    "elementwise_add_kernel", "elementwise_cast_kernel", "reduce_sum_kernel", "argmax_kernel", "softmax_kernel",
    "normalize_kernel", "gemm_kernel", "conv_kernel", "max_pool_index_kernel", "gather_kernel", "scatter_add_kernel",
    "adamw_kernel", "attention_kernel", "attention_grad_kernel",
)  # fmt: skip


@pytest.fixture(scope="module")
def device() -> Iterator[CheckedDevice]:
    opened = plugin.open_cpu("0?checked=1&orders=1")
    assert isinstance(opened, CheckedDevice)
    assert "checked, 1 thread orders" in opened.driver.name
    yield opened
    opened.close()


@pytest.mark.parametrize("kernel", FEW)
def test_kernels_of_the_kit_pass(device: CheckedDevice, kernel: str) -> None:
    row, types = pick(kernel)
    for number, plan in enumerate(PLANS):
        launch = build(np.random.default_rng([9, number]), row, types, plan)
        check_launch(device, launch)


KIT = {
    f"{module.__name__.rpartition('.')[2]}.{name}": check
    for module in (commands, failures, submissions)
    for name, check in module.CHECKS.items()
}


@pytest.mark.parametrize("name", KIT)
def test_commands_submissions_and_failures_of_the_kit_pass(device: CheckedDevice, name: str) -> None:
    KIT[name](device)


def test_memory_that_nobody_wrote_counts_as_zeros(device: CheckedDevice) -> None:
    outputs = product(device)
    assert bytes(device.read(outputs.buffer, 0, SIZES[2])) == bytes(SIZES[2])


def test_an_index_out_of_range_stays_what_it_is(device: CheckedDevice) -> None:
    data, index = np.arange(4, dtype=np.float32), np.array([1, 9], np.int64)
    with pytest.raises(IndexRangeError):
        device.run(umd.translate("Gather", [data, index]), [data, index])


# planted in the driver: what it says of the launch is wrong


def product(device: CheckedDevice) -> Binding:
    """Runs a (5, 3) · (3, 7) product over fresh buffers; returns the output's binding."""
    recording = Recording()
    places = [(recording.argument(), 0, size) for size in SIZES]
    recording.mark("layer 3")
    recording.dispatch(GEMM, BLOCK, places)
    program = device.load(bytes(recording.finish()))
    bindings = [Binding(device.allocate(size), 0, size) for size in SIZES]
    device.submit(program, bindings).wait()
    return bindings[2]


class Planted(CheckedHostDriver):
    """A driver that is handed other addresses than it should be."""

    def __init__(self, change: Callable[[list[int]], None]) -> None:
        super().__init__()
        self._change = change

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        changed = list(addresses)
        self._change(changed)
        return super().prepare(function, geometry, changed, block)


def _move(index: int, by: int, addresses: list[int]) -> None:
    addresses[index] += by


class OneKernel:
    """Sources of one simple kernel, two elements in each of two workgroups unless it is told otherwise."""

    def __init__(self, text: str = SIMPLE_ADD, grid: int = 3) -> None:
        self._text, self._grid = text, grid

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        return False

    def source_for(self, record: KernelRecord, wide: bool = False) -> KernelSource | None:
        return KernelSource(self._text, "elementwise_add_kernel") if record.row is ADD.row else None

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> Any:
        return (self._grid, 1, 1), (2, 1, 1), 0


def faults_of(
    driver: CheckedHostDriver | None = None,
    given: Sources | None = None,
    run: Callable[[CheckedDevice], Any] | None = None,
) -> LaunchFaultError:
    """Returns the error of an addition of five elements, or of another run."""
    device = CheckedDevice(driver or CheckedHostDriver(), "cuda-cpu:0", Options(checked=True), given or OneKernel())

    def add(device: CheckedDevice) -> None:
        bindings = [Binding(device.allocate(SIZE), 0, SIZE) for _ in range(3)]
        ticket = device.submit(device.load(bytes(adding())), bindings)
        try:
            ticket.wait()
        except LaunchFaultError:
            with pytest.raises(PoisonedError):
                device.read(bindings[2].buffer, 0, SIZE)
            raise

    with pytest.raises(LaunchFaultError) as caught:
        (run or add)(device)
    device.close()
    return caught.value


def test_the_simple_kernel_is_right() -> None:
    with pytest.raises(BaseException, match="DID NOT RAISE"):
        faults_of()


def test_a_wrong_offset_is_an_access_out_of_bounds_with_slot_command_invocation_and_line() -> None:
    error = faults_of(Planted(functools.partial(_move, 1, 4)))
    (fault,) = error.faults
    assert (fault.kind, fault.binding, fault.slot) == ("out-of-bounds read", "b", 1)
    assert (fault.offset, fault.size, fault.block, fault.thread) == (SIZE, 4, (2, 0, 0), (0, 0, 0))
    assert (fault.line, fault.code) == (5, "if (i < args.extents[0]) out[i] = a[i] + b[i];")
    assert f"{fault.line}: {fault.code}" in str(error)
    facts = error.facts()
    assert (facts["kernel"], facts["command"], facts["device"]) == ("elementwise_add_kernel", 0, "cuda-cpu:0")
    assert "[cuda-cpu:0: elementwise_add_kernel, command 0]" in str(error)


def test_a_wrong_offset_is_found_in_our_own_kernels_too() -> None:
    error = faults_of(Planted(functools.partial(_move, 1, 4)), sources, product)
    assert ("out-of-bounds read", "b", 1) in [(fault.kind, fault.binding, fault.slot) for fault in error.faults]
    assert (error.facts()["command"], error.facts()["mark"]) == (1, "layer 3")


def test_swapped_bindings_are_found() -> None:
    def swap(addresses: list[int]) -> None:
        addresses[0], addresses[2] = addresses[2], addresses[0]

    kinds = {fault.kind for fault in faults_of(Planted(swap)).faults}
    assert kinds & {"out-of-bounds read", "out-of-bounds write"}


@pytest.mark.parametrize(("index", "kind"), [(0, "out-of-bounds read"), (2, "out-of-bounds write")])
def test_a_binding_that_is_too_short_is_found(monkeypatch: pytest.MonkeyPatch, index: int, kind: str) -> None:
    ranges = Program.ranges

    def short(program: Program, step: Any) -> list[Binding]:
        found = ranges(program, step)
        found[index] = found[index]._replace(size=found[index].size - 4)
        return found

    monkeypatch.setattr(Program, "ranges", short)
    (fault,) = faults_of().faults
    assert (fault.kind, fault.slot, fault.offset) == (kind, index, SIZE - 4)


def test_a_wrong_grid_leaves_elements_unwritten() -> None:
    (fault,) = faults_of(given=OneKernel(grid=2)).faults
    assert (fault.kind, fault.binding, fault.offset) == ("unwritten output", "out", 16)
    assert "1 elements, of element (4,) on, were never written" in fault.detail


def test_memory_that_is_smaller_than_its_buffer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "block_size", lambda size: max(size // 2, 1))
    (fault,) = faults_of().faults
    assert (fault.kind, fault.binding) == ("binding outside its memory", "a")


# planted in a kernel

BROKEN = {
    "race between a read and a write": """__shared__ float kept[2];
  kept[threadIdx.x] = i < 5 ? a[i] : 0;
  const float other = kept[1 - threadIdx.x];
  if (i < 5) out[i] = other + b[i];""",
    "race between two writes": "if (i < 5) { out[i] = a[i]; out[0] = b[i]; }",
    "uninitialised read": "if (i < 5) { const float before = out[i]; out[i] = before + a[i] + b[i]; }",
    "unwritten output": "if (i < 5 && i != 3) out[i] = a[i] + b[i];",
    "divergent barrier": "if (threadIdx.x == 0) __syncthreads(); if (i < 5) out[i] = a[i] + b[i];",
    "bad warp mask": "__syncwarp(1u << (1 - threadIdx.x)); if (i < 5) out[i] = a[i] + b[i];",
    "out-of-bounds read": "if (i < 5) out[i] = a[i] + b[i + 1];",
    "out-of-bounds write": "if (i < 5) out[i + 1] = a[i] + b[i];",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_of_fault_of_a_kernel_is_found(kind: str) -> None:
    text = SIMPLE_ADD.replace("if (i < args.extents[0]) out[i] = a[i] + b[i];", BROKEN[kind])
    assert kind in {fault.kind for fault in faults_of(given=OneKernel(text)).faults}


def test_a_result_that_depends_on_the_order_of_threads_is_found() -> None:
    body = """__shared__ int last;
  if (threadIdx.x == 0) last = 0;
  __syncthreads();
  atomicExch(&last, (int)threadIdx.x);
  __syncthreads();
  if (i < 5) out[i] = a[i] + last;"""
    text = SIMPLE_ADD.replace("if (i < args.extents[0]) out[i] = a[i] + b[i];", body)
    (fault,) = faults_of(CheckedHostDriver(orders=8), OneKernel(text)).faults
    assert (fault.kind, fault.binding, fault.slot) == ("result depends on thread order", "out", 2)


# pieces and options


def test_operands_that_overlap_share_a_piece_and_neighbours_do_not() -> None:
    memory = np.zeros(64, np.uint8)
    at = memory.ctypes.data
    operands = [
        Operand("a", "r", at, 16, None), Operand("b", "r", at + 16, 16, None), Operand("c", "w", at + 24, 16, None),
        Operand("none", "r", at + 40, 0, None),
    ]  # fmt: skip
    pieces = pieces_of(operands)
    assert [[o.name for o in piece.operands] for piece in pieces] == [["a"], ["b", "c"]]
    assert [(piece.start, piece.size) for piece in pieces] == [(at, 16), (at + 16, 24)]
    assert all((piece.address - piece.start) % 256 == 0 for piece in pieces)


def test_checked_needs_the_processor_and_orders_need_checked() -> None:
    assert parse("cuda-cpu", "0?checked=1&orders=7") == Options(checked=True, orders=7)
    for backend, text, detail in (
        ("cuda", "0?checked=1", "compute-sanitizer"),
        ("cuda-cpu", "0?orders=2", "needs checked=1"),
        ("cuda-cpu", "0?checked=1&orders=100", "does not fit"),
        ("cuda-cpu", "0?checked=1&orders=1KiB", "does not fit"),
        ("cuda-cpu", "0?checked=2", "does not fit"),
    ):
        with pytest.raises(AttributeValueError, match=detail):
            parse(backend, text)


def test_a_launch_that_nothing_is_said_about_is_refused() -> None:
    driver = CheckedHostDriver()
    source = sources.source_for(GEMM)
    assert source is not None
    function = driver.function(driver.load(source.text, source.options), source.entry)
    with pytest.raises(UmdError, match="without a word"):
        driver.prepare(function, Geometry((1, 1, 1), (1, 1, 1), 0), [0, 0, 0], BLOCK)
    driver.close()


@pytest.mark.parametrize("op", ["ReduceSum", "Softmax", "ArgMax", "MatMul"])
def test_launches_of_several_passes_pass(device: CheckedDevice, op: str) -> None:
    random = np.random.default_rng(3)
    inputs: list[Any] = [random.standard_normal((2, 20_000)).astype(np.float32)]
    if op == "MatMul":
        inputs = [random.standard_normal((3, 1100)).astype(np.float32), np.ones((1100, 2), np.float32)]
    attributes: dict[str, Any] = {"axis": 1} if op == "ArgMax" else {}
    command_buffer = umd.translate(op, inputs, **attributes)
    (got,) = device.run(command_buffer, inputs)
    with contextlib.closing(umd.open_device("sim:0")) as sim:
        (wanted,) = sim.run(command_buffer, inputs)
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-3)
