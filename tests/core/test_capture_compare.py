"""`compare`: whatever is planted into one device is named, command by command, and nothing else is."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.core.capture_samples import (
    Faulty,
    Spoil,
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
from umd_core.capture.events import Allocate, Event, NewFence, Read, Submit
from umd_core.capture.excerpt import excerpt
from umd_core.capture.judge import ulps
from umd_core.capture.schedule import in_order
from umd_core.commands import CommandBuffer, Patch, PatchKind
from umd_core.device import Binding, FenceValue
from umd_core.encoding import decode
from umd_core.errors import UnsupportedError
from umd_core.kernels import BY_NAME
from umd_core.testing.harness import byte_of, record_launch
from umd_core.testing.launches import Plan, build, type_arguments
from umd_core.testing.recording import Recording
from umd_sim.device import SimDevice

DESC = umd.TensorDesc("f32", (4,))


@pytest.fixture(scope="module")
def layers() -> CommandBuffer:
    return network()[0]


@pytest.fixture(scope="module")
def run(layers: CommandBuffer, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return captured_run(tmp_path_factory.mktemp("run"), layers, *network()[1])


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


class Named(Faulty):
    """Spoils every launch of one kernel."""

    def __init__(self, kernel: str, spoil: Spoil) -> None:
        super().__init__(0, spoil)
        self._kernel = kernel

    def bind(self, executable: Any, parameters: bytes, bindings: Any) -> Any:
        call = super().bind(executable, parameters, bindings)

        def run() -> None:
            self.launched = 0 if executable[0].row.name == self._kernel else 1
            call()

        return run


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
    program = device.load(umd.translate("Gather", [DESC, umd.TensorDesc("i64", (1,))]))
    device.submit(program, bound(device, np.zeros(4, np.float32), np.array([9]), np.zeros(1, np.float32)))
    device.close()
    report = compare(open_capture(tmp_path), SimDevice(), SimDevice())
    assert (report.ok, report.commands, report.failed) == (True, 1, 1)


# tolerance


def _scaled(factor: float) -> Spoil:
    def spoil(box: Array, binding: Binding) -> None:
        box[...] = box * np.float32(1 + factor * np.finfo(np.float32).eps)

    return spoil


@pytest.mark.parametrize(("epsilons", "wrong"), [(0, False), (10, False), (200, True), (1e6, True)])
def test_the_kernels_tolerance_decides(run: Capture, epsilons: float, wrong: bool) -> None:
    """tanh states 16 epsilons."""
    report = compare(run, SimDevice(), Faulty(4, _scaled(epsilons)))
    assert [(found.command, found.tolerance) for found in report.differences] == ([(4, 16.0)] if wrong else [])
    assert report.close == (1 if epsilons == 10 else 0)


def test_rounding_is_not_added_up(run: Capture) -> None:
    """Each tanh is nearly at its tolerance; what follows starts from the same bytes on both devices."""
    report = compare(run, SimDevice(), Named("elementwise_tanh_kernel", _scaled(13)))
    assert (report.ok, report.close, report.equal) == (True, 6, 12)


def test_cancellation_is_judged_by_the_size_of_the_terms(tmp_path: Path) -> None:
    """A sum near zero of large terms: far off in relation to itself, and right."""
    terms = np.array([[1e6, -1e6, 1, 3e5, -3e5, 0.1]], np.float32)
    run = captured_run(tmp_path, umd.translate("ReduceSum", [umd.TensorDesc.of(terms)], keepdims=0), terms)

    def off(box: Array, binding: Binding) -> None:
        box[...] += np.float32(0.5)

    def far_off(box: Array, binding: Binding) -> None:
        box[...] += np.float32(500)

    report = compare(run, SimDevice(), Faulty(0, off))
    assert (report.ok, report.close) == (True, 1)
    (found,) = compare(run, SimDevice(), Faulty(0, far_off)).differences
    assert found.at_fault == ("faulty:0",)
    assert found.expected == pytest.approx(1.1, abs=0.01)


def test_a_launch_too_large_for_the_reference_is_judged_by_its_largest_number(
    run: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("WORK", "PRODUCTS", "WINDOWS"):
        monkeypatch.setattr(f"umd_core.capture.judge.{limit}", 0)
    (found,) = compare(run, SimDevice(), Faulty(6, negate)).differences
    assert (found.command, found.at_fault, found.expected, found.op) == (6, (), None, "MatMul")
    assert compare(run, SimDevice(), Faulty(6, _scaled(10))).ok


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        (np.float32(1), np.nextafter(np.float32(1), np.float32(2)), 1),
        (np.float32(-0.0), np.float32(0.0), 0),
        (np.nextafter(np.float64(0), -1), np.nextafter(np.float64(0), 1), 2),
        (np.float16(1), np.float16(2), 1024),
        (np.float32(np.nan), np.float32(1), None),
        (np.int32(1), np.int32(2), None),
    ],
)
def test_ulps(a: Any, b: Any, steps: int | None) -> None:
    assert ulps(a, b) == ulps(b, a) == steps


# NaN and infinities


def logs(*values: float) -> tuple[CommandBuffer, Array]:
    graph = umd.Graph()
    y = graph.add("Log", [graph.add("Mul", [graph.input("x", DESC), graph.constant(np.float32(1))])], name="log")
    graph.output(graph.add("Exp", [y]))
    return umd.translate(graph), np.array(values, np.float32)


def test_nan_that_both_devices_compute_is_named_where_it_begins(tmp_path: Path) -> None:
    run = captured_run(tmp_path, *logs(1, 2, -3, 4))
    (found,) = compare(run, SimDevice(), SimDevice()).differences
    assert (found.kind, found.command, found.op, found.node, found.element[-1]) == ("nonfinite", 1, "Log", "log", 2)
    assert found.values is not None
    assert np.isnan(found.values).all()
    assert found.at_fault == ()
    assert found.as_dict()["values"] == ["nan", "nan"]
    assert compare(run, SimDevice(), SimDevice(), any_nonfinite=True).ok
    (halved,) = compare(run, SimDevice(), SimDevice(), strategy="bisect").differences
    assert halved.command == 1


def test_nan_and_infinities_that_came_in_are_nobodys_fault(tmp_path: Path) -> None:
    run = captured_run(tmp_path, *logs(1, np.inf, np.nan, 4))
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.equal) == (True, 3)


# parts of a run


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


def test_submissions_are_taken_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    """The first waits for a signal of the host; the second, on another queue, runs before it."""
    device = capturing(tmp_path)
    double = device.load(umd.translate("Add", [DESC, DESC]))
    x, y, z = bound(device, np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32))
    fence = device.fence()
    device.submit(double, [y, y, z], waits=[FenceValue(fence, 1)])
    device.submit(double, [x, x, y], queue=1)
    fence.signal(1)
    np.testing.assert_array_equal(np.frombuffer(device.read(z.buffer, 0, 16), np.float32), [0, 4, 8, 12])
    device.close()
    run = open_capture(tmp_path)
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.submissions) == (True, 2)
    (found,) = compare(run, SimDevice(), Faulty(0, negate)).differences
    assert (found.submission, found.element[-1], found.values) == (1, 1, (2.0, -2.0))
    (found,) = compare(run, SimDevice(), Faulty(1, negate)).differences
    assert (found.submission, found.element[-1], found.values) == (0, 1, (4.0, -4.0))


def test_a_buffer_that_the_host_uses_under_waiting_work_is_refused() -> None:
    submit = Submit("0" * 64, ((0, 0, 8),), (), ((0, 1),), (), 0)
    events: list[tuple[int, Event]] = [(-1, NewFence()), (-1, Allocate(8)), (0, submit), (-1, Read(0, 0, 8, ""))]
    with pytest.raises(UnsupportedError, match="submission 0 waits"):
        list(in_order(events))
    assert list(in_order(events[:3])) == [(-1, Allocate(8))]


def test_patched_parameters_are_those_of_the_submission(tmp_path: Path) -> None:
    """The same program twice, with other values: the second is judged by its own."""
    row = BY_NAME["normalize_kernel"]
    launch = build(np.random.default_rng(2), row, type_arguments(row)[0], Plan())
    place = 32 + byte_of(launch.record, "epsilon")
    device = capturing(tmp_path)
    program = device.load(record_launch(launch, [Patch(0, place, PatchKind.BITS64, 0)]))
    bindings = bound(device, *launch.memories)
    for epsilon in (1e-5, 100.0):
        device.submit(program, bindings, [int.from_bytes(struct.pack("<d", epsilon), "little")]).wait()
    device.close()
    run = open_capture(tmp_path)
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.submissions, report.equal) == (True, 2, 2)
    (found,) = compare(run, SimDevice(), Faulty(1, negate)).differences
    assert (found.submission, found.at_fault) == (1, ("faulty:0",))  # only the right epsilon acquits the first


@settings(max_examples=40)
@given(case=grown(), data=st.data())
def test_an_excerpt_is_a_valid_program_of_its_own(case: tuple[Grown, list[Array]], data: st.DataObject) -> None:
    command_buffer = umd.translate(case[0].graph)
    count = len(command_buffer.commands)
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, count))
    part = excerpt(command_buffer, first, last, {})
    again = decode(bytes(part.command_buffer))
    assert len(again.commands) == last - first
    assert again.argument_count == len(part.slots) == len(set(part.slots))
    assert [slot.alias_group for slot in again.slots] == [command_buffer.slots[s].alias_group for s in part.slots]


def test_programs_that_were_let_go_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umd_core.capture.comparison.PROGRAMS", 1)
    device = capturing(tmp_path)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    for _ in range(2):
        for layers in (1, 2):
            device.run(network(layers)[0], [x])
    device.close()
    first, second = SimDevice(), SimDevice()
    report = compare(open_capture(tmp_path), first, second)
    assert (report.ok, report.submissions, report.equal) == (True, 4, 18)
    assert (first.used, second.used) == (0, 0)


def test_nothing_is_left_on_the_devices(run: Capture) -> None:
    first, second = SimDevice(), Faulty(3, negate)
    compare(run, first, second)
    assert (first.used, second.used) == (0, 0)
