"""`compare`: whatever is planted into one device is named, command by command, and nothing else is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.core.capture_samples import (
    Faulty,
    Named,
    Spoil,
    captured_network,
    captured_run,
    capturing,
    change_first,
    launches,
    negate,
    network,
)
from tests.core.device_samples import HostDevice, bound
from tests.core.op_arrays import Array
from tests.core.random_graphs import Grown, grown
from umd_core.capture import STRATEGIES, Capture, compare, open_capture
from umd_core.commands import CommandBuffer
from umd_core.device import Binding
from umd_core.kernels import BY_NAME
from umd_core.testing.harness import record_launch
from umd_core.testing.launches import Plan, build, type_arguments
from umd_core.testing.recording import Recording
from umd_sim.device import SimDevice


@pytest.fixture(scope="module")
def layers() -> CommandBuffer:
    return network()[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return captured_network(tmp_path_factory.mktemp("run"))


def test_equal_devices_agree(run: Capture, layers: CommandBuffer) -> None:
    for strategy, launched in (("steps", len(layers.commands)), ("bisect", 1)):
        report = compare(run, SimDevice(), SimDevice(), strategy=strategy)
        assert (report.ok, report.submissions, report.commands, report.equal) == (True, 1, 18, 18)
        assert (report.close, report.launches) == (0, launched)
        assert report.devices == ("sim:0 (1st)", "sim:0 (2nd)")


@pytest.mark.parametrize("at", range(18))
def test_a_sign_error_is_named_with_its_op_and_source_line(run: Capture, layers: CommandBuffer, at: int) -> None:
    report = compare(run, SimDevice(), Faulty(at, negate))
    (found,) = report.differences
    layer, which = divmod(at, 3)
    kernel, op, line = [
        ("gemm_kernel", "MatMul", 10),
        ("elementwise_tanh_kernel", "Tanh", 30),
        ("softmax_kernel", "Softmax", 50),
    ][which]
    node = {"MatMul": "linear", "Tanh": "tanh", "Softmax": "softmax"}[op]
    assert (found.kind, found.submission, found.command) == ("value", 0, launches(layers)[at])
    assert (found.name, found.types, found.op) == (kernel, ("float32",), op)
    assert (found.node, found.source) == (f"{node}{layer}", f"model.py:{line + layer}")
    assert found.values is not None
    assert found.values[1] == -found.values[0] != 0
    assert found.expected == pytest.approx(found.values[0], rel=1e-5)
    assert (found.at_fault, found.wrong, found.count) == (("faulty:0",), 32, 32)
    assert found.relative == 2.0
    text = str(found)
    assert text.startswith(f"submission 0, command {at}: {kernel}<float32>, op {op}, node {node}{layer}, model.py:")
    assert text.endswith("wrong: faulty:0")


def test_the_first_device_may_be_the_wrong_one(run: Capture) -> None:
    (found,) = compare(run, Faulty(7, negate), SimDevice()).differences
    assert (found.command, found.at_fault, found.devices) == (7, ("faulty:0",), ("faulty:0", "sim:0"))


@settings(max_examples=60)
@given(case=grown(), data=st.data(), strategy=st.sampled_from(STRATEGIES))
def test_one_wrong_element_of_a_random_graph_is_named(
    case: tuple[Grown, list[Array]], data: st.DataObject, strategy: str
) -> None:
    g, _ = case
    command_buffer = umd.translate(g.graph)
    commands = launches(command_buffer)
    assume(commands)
    at = data.draw(st.integers(0, len(commands) - 1))
    with tempfile.TemporaryDirectory() as folder:
        run = captured_run(Path(folder), command_buffer, *g.arguments)
        assert compare(run, SimDevice(), SimDevice(), any_nonfinite=True, strategy=strategy).ok
        if strategy == "steps":
            (found,) = compare(run, SimDevice(), Faulty(at, change_first), any_nonfinite=True).differences
            assert (found.kind, found.command) == ("value", commands[at])
            assert found.wrong == 1 or "scatter" in found.name  # its elements may coincide
            assert found.element == (0,) * len(found.element)


@pytest.mark.parametrize("kernel", sorted(BY_NAME))
def test_one_wrong_element_of_any_kernel_is_named(kernel: str, tmp_path: Path) -> None:
    """With several combinations of types, strided operands among them."""
    row, caps = BY_NAME[kernel], SimDevice().caps()
    combinations = [types for types in type_arguments(row) if caps.supports(kernel, types)]
    if not combinations:
        pytest.skip("the simulator does not have it")
    for number, types in enumerate(combinations[:: -(-len(combinations) // 4)]):
        plan = Plan(layout=("contiguous", "permuted", "negative", "gaps")[number % 4])
        launch = build(np.random.default_rng([number, len(kernel)]), row, types, plan)
        device = capturing(tmp_path / str(number))
        device.submit(device.load(record_launch(launch)), bound(device, *launch.memories)).wait()
        device.close()
        run = open_capture(tmp_path / str(number))
        report = compare(run, SimDevice(), SimDevice(), any_nonfinite=True)
        assert (report.ok, report.equal) == (True, 1)
        (found,) = compare(run, SimDevice(), Faulty(0, change_first), any_nonfinite=True).differences
        assert (found.name, found.types, found.at_fault) == (kernel, tuple(t.name for t in types), ("faulty:0",))
        assert (found.kind, found.wrong, set(found.element)) == ("value", 1, {0} if found.element else set())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kernel", ["gemm_kernel", "elementwise_tanh_kernel", "softmax_kernel"])
def test_every_launch_of_a_wrong_kernel_is_found(run: Capture, strategy: str, kernel: str) -> None:
    report = compare(run, SimDevice(), Named(kernel, negate), strategy=strategy, most=100)
    assert {found.name for found in report.differences} == {kernel}
    assert [found.node[-1] for found in report.differences] == list("012345")
    assert (report.commands, report.equal) == (18, 12)
    limited = compare(run, SimDevice(), Named(kernel, negate), strategy=strategy, most=2)
    assert limited.differences == report.differences[:2]


def _shift(box: Array, binding: Binding) -> None:
    box[...] = np.roll(box, 1, axis=-1)  # as a wrong offset or stride does


def _nan(box: Array, binding: Binding) -> None:
    box.flat[10] = np.nan


def _infinite(box: Array, binding: Binding) -> None:
    box.flat[31] = -np.inf


def _transpose(box: Array, binding: Binding) -> None:
    box[...] = box.reshape(4, 8).T.reshape(box.shape).copy()


@pytest.mark.parametrize(
    ("spoil", "kind", "element"),
    [(_shift, "value", 0), (_transpose, "value", 1), (_nan, "nonfinite", 10), (_infinite, "nonfinite", 31)],
)
def test_wrong_places_and_numbers(run: Capture, spoil: Spoil, kind: str, element: int) -> None:
    (found,) = compare(run, SimDevice(), Faulty(10, spoil)).differences
    assert (found.kind, found.command, found.op) == (kind, 10, "Tanh")
    assert found.element == (element,)
    assert found.at_fault == ("faulty:0",)
    assert ("NaN or an infinity appears" in str(found)) == (kind == "nonfinite")


def test_a_write_beside_the_operand_is_named(run: Capture) -> None:
    def beside(box: Array, binding: Binding) -> None:
        binding.buffer.memory[-1] ^= 0xFF

    (found,) = compare(run, SimDevice(), Faulty(1, beside)).differences
    assert (found.kind, found.command, found.at_fault) == ("stray", 1, ("faulty:0",))
    assert "bytes changed that the command does not own" in str(found)


def test_a_stray_write_into_a_large_buffer_is_found_at_the_end(run: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def beside(box: Array, binding: Binding) -> None:
        binding.buffer.memory[-1] ^= 0xFF

    monkeypatch.setattr("umd_core.capture.steps.LOOKED_AT", 0)
    (found,) = compare(run, SimDevice(), Faulty(1, beside)).differences
    assert (found.kind, found.command, found.errors) == ("stray", 17, ("", "changed by this or an earlier command"))


def test_a_launch_that_fails_on_one_device_is_named(run: Capture) -> None:
    def fail(box: Array, binding: Binding) -> None:
        raise RuntimeError("the kernel crashed")

    (found,) = compare(run, SimDevice(), Faulty(5, fail)).differences
    assert (found.kind, found.command, found.at_fault) == ("failed", 5, ("faulty:0",))
    assert found.errors[0] == ""
    assert "the kernel crashed" in found.errors[1]


def test_work_that_fails_alike_is_no_difference(tmp_path: Path) -> None:
    device = capturing(tmp_path)
    program = device.load(umd.translate("Gather", [umd.TensorDesc("f32", (4,)), umd.TensorDesc("i64", (1,))]))
    device.submit(program, bound(device, np.zeros(4, np.float32), np.array([9]), np.zeros(1, np.float32)))
    device.close()
    report = compare(open_capture(tmp_path), SimDevice(), SimDevice())
    assert (report.ok, report.commands, report.failed) == (True, 1, 1)


def test_a_wrong_copy_fill_or_update_is_named(tmp_path: Path) -> None:
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    recording.mark("before")
    recording.copy((target, 0, 8), (source, 0, 8))
    recording.fill((target, 8, 8), b"ab")
    recording.update(target, 16, b"update!!")

    class Wrong(HostDevice):
        def __init__(self, method: str) -> None:
            super().__init__()
            self.wrong = method

        def copy(self, destination: Binding, source: Binding) -> None:
            super().copy(destination, source)
            self._spoil("copy", destination)

        def fill(self, destination: Binding, pattern: bytes) -> None:
            super().fill(destination, pattern)
            self._spoil("fill", destination)

        def _spoil(self, method: str, destination: Binding) -> None:
            if method == self.wrong:
                destination.buffer.memory[destination.offset + 3] ^= 1

    device = capturing(tmp_path, HostDevice())
    device.submit(device.load(bytes(recording.finish())), bound(device, b"12345678", bytes(24))).wait()
    device.close()
    run = open_capture(tmp_path)
    assert compare(run, HostDevice(), Wrong("")).equal == 3
    for command, method in ((1, "copy"), (2, "fill")):
        (found,) = compare(run, HostDevice(), Wrong(method)).differences
        assert (found.name, found.command, found.element, found.mark) == (method, command, (3,), "before")
        assert (found.wrong, found.count, found.op) == (1, 8, "")


def test_nothing_is_left_on_the_devices(run: Capture) -> None:
    first, second = SimDevice(), Faulty(3, negate)
    compare(run, first, second)
    assert (first.used, second.used) == (0, 0)
