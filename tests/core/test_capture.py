"""Captures: what is written down, that a replay gives the same bytes, and that an ended process leaves a usable one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.core.capture_samples import captured_run, capturing, network
from tests.core.device_samples import HostDevice, bound, contents, copy_program
from tests.core.op_arrays import Array
from tests.core.random_graphs import Grown, grown
from umd_core.capture import CapturingDevice, Folder, open_capture, replay
from umd_core.capture.events import Allocate, Event, Result, Signal, Submit, Write, from_line, to_line
from umd_core.capture.ranges import Ranges
from umd_core.commands import Flag, Slot, SlotKind
from umd_core.device import Binding, FenceValue
from umd_core.errors import AttributeValueError, CancelledError, InputCountError, LimitError, Status, UnsupportedError
from umd_core.kernels import BY_NAME
from umd_core.testing.recording import Recording
from umd_sim.device import SimDevice

F32 = umd.TensorDesc("f32", (4,))


def events_of(folder: Path, kind: type[Any]) -> list[Any]:
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    return [event for event in map(from_line, lines) if isinstance(event, kind)]


# the format


def test_literal_lines() -> None:
    digest = "ab" * 32
    assert to_line(Allocate(16)) == b'{"event":"allocate","size":16}\n'
    line = to_line(Submit(digest, ((0, 4, 8),), (7,), ((1, 2),), (), 3))
    assert line == (
        b'{"event":"submit","program":"' + digest.encode() + b'","bindings":[[0,4,8]],"values":[7],'
        b'"waits":[[1,2]],"signals":[],"queue":3}\n'
    )


NUMBERS, HASHES = st.integers(0, 2**62 - 1), st.integers(0, 2**256 - 1).map("{:064x}".format)
WORDS = st.integers(0, 2**64 - 1)
FENCES = st.lists(st.tuples(NUMBERS, WORDS), max_size=3).map(tuple)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Allocate, NUMBERS),
    st.builds(Write, NUMBERS, NUMBERS, NUMBERS, HASHES, st.booleans()),
    st.builds(Signal, NUMBERS, WORDS),
    st.builds(
        Submit,
        HASHES,
        st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
        st.lists(WORDS, max_size=3).map(tuple),
        FENCES,
        FENCES,
        NUMBERS,
    ),
    st.builds(Result, NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, HASHES), max_size=3).map(tuple)),
)


@given(event=EVENTS)
def test_events_survive_their_line(event: Event) -> None:
    assert from_line(to_line(event)) == event


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 20)), max_size=12), st.data())
def test_ranges_are_sets_of_bytes(changes: list[tuple[bool, int, int]], data: st.DataObject) -> None:
    ranges, wanted = Ranges(), set[int]()
    for adds, start, end in changes:
        if adds:
            ranges.add(start, end)
            wanted |= set(range(start, end))
        else:
            ranges.remove(start, end)
            wanted -= set(range(start, end))
        assert {byte for a, b in ranges for byte in range(a, b)} == wanted
        assert all(a < b for a, b in ranges)
    start, end = data.draw(st.integers(0, 21)), data.draw(st.integers(0, 21))
    assert ranges.covers(start, end) == (set(range(start, end)) <= wanted)
    assert ranges.meets(start, end) == bool(set(range(start, end)) & wanted)


# replay


@settings(max_examples=40)
@given(case=grown())
def test_a_random_graph_gives_the_same_bytes_again(case: tuple[Grown, list[Array]]) -> None:
    g, wanted = case
    with tempfile.TemporaryDirectory() as folder:
        device = capturing(Path(folder))
        results = device.run(umd.translate(g.graph), g.arguments)
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        device.close()
        capture = open_capture(Path(folder))
        report = replay(capture, SimDevice())
    assert capture.complete
    assert report.ok, report.mismatches
    assert (report.submissions, report.unrecorded) == (1, 0)
    assert report.equal >= len(results)


def test_the_captured_device_is_the_device(tmp_path: Path) -> None:
    device = capturing(tmp_path)
    tensor = device.tensor(np.arange(4, dtype=np.float32))
    owner: object = tensor.storage.device
    assert owner is device
    (result,) = device.run(umd.translate("Neg", [F32]), [tensor])
    np.testing.assert_array_equal(result.numpy(), [0, -1, -2, -3])
    assert (device.name, device.maps, device.used) == ("sim:0", True, 32)
    del tensor, result
    assert device.used == 0


def test_memory_that_the_host_changes_without_a_word(tmp_path: Path) -> None:
    """On a device whose memory the host sees, nobody tells the device that bytes changed."""
    device = capturing(tmp_path)
    program = device.load(umd.translate("Neg", [F32]))
    array = np.arange(4, dtype=np.float32)
    source, target = device.wrap(array), device.allocate(16)
    bindings = [Binding(source, 0, 16), Binding(target, 0, 16)]
    for step in range(3):
        array[0] = [5, 9, 9][step]
        device.submit(program, bindings).wait()
        assert np.frombuffer(device.read(target, 0, 16), np.float32)[0] == -array[0]
    device.submit(program, [bindings[1], bindings[0]]).wait()
    device.close()
    writes = events_of(tmp_path, Write)
    assert [(write.buffer, write.snapshot) for write in writes] == [(0, True), (0, True)]
    report = replay(open_capture(tmp_path), SimDevice())
    assert (report.ok, report.equal) == (True, 4 + 3)


def test_results_of_work_are_inputs_of_the_next_without_a_copy_in_the_capture(tmp_path: Path) -> None:
    device = capturing(tmp_path, HostDevice())
    a, b, c = bound(device, b"12345678", bytes(8), bytes(8))
    program = device.load(copy_program(8))
    device.submit(program, [a, b]).wait()
    device.submit(program, [b, c]).wait()
    device.close()
    assert [write.snapshot for write in events_of(tmp_path, Write)] == [False] * 3
    assert len(list((tmp_path / "data").iterdir())) == 2  # "12345678" and zeros
    assert len(list((tmp_path / "programs").iterdir())) == 1
    assert replay(open_capture(tmp_path), HostDevice()).ok


def test_bytes_that_lay_there_before_are_kept(tmp_path: Path) -> None:
    device = capturing(tmp_path, HostDevice())
    source, target = device.allocate(8), device.allocate(8)
    source.memory[:] = 7  # what a device may hold that nobody has written
    device.submit(device.load(copy_program(8)), [Binding(source, 0, 8), Binding(target, 0, 8)]).wait()
    device.close()
    (write,) = events_of(tmp_path, Write)
    assert write == Write(0, 0, 8, write.data, True)
    assert (tmp_path / "data" / f"{write.data}.bin").read_bytes() == bytes([7] * 8)
    assert replay(open_capture(tmp_path), HostDevice()).ok


def test_fences_queues_and_values_are_replayed(tmp_path: Path) -> None:
    device = capturing(tmp_path, HostDevice())
    a, b, c = bound(device, b"abcdefgh", bytes(8), bytes(8))
    program, fence, done = device.load(copy_program(8)), device.fence(), device.fence()
    waiting = device.submit(program, [a, b], waits=[FenceValue(fence, 2)], signals=[FenceValue(done, 1)], queue=1)
    last = device.submit(program, [b, c], waits=[FenceValue(done, 1)])
    with pytest.raises(CancelledError):
        waiting.wait()
    fence.signal(2)
    last.wait()
    done.wait(1)
    assert (fence.value, done.value, contents(device, c)) == (2, 1, b"abcdefgh")
    device.close()
    report = replay(open_capture(tmp_path), HostDevice())
    assert (report.ok, report.submissions, report.unrecorded, report.equal) == (True, 2, 2, 1)


def test_a_refused_submission_is_none(tmp_path: Path) -> None:
    device = capturing(tmp_path, HostDevice())
    a, b = bound(device, b"12345678", bytes(8))
    program = device.load(copy_program(8))
    with pytest.raises(InputCountError):
        device.submit(program, [a])
    with pytest.raises(InputCountError):
        device.submit(program, [a, b], values=[1 << 70])
    device.submit(program, [a, b]).wait()
    device.close()
    capture = open_capture(tmp_path)
    assert capture.submission_count == 1
    assert replay(capture, HostDevice()).ok


def test_one_shot_programs_are_loaded_anew(tmp_path: Path) -> None:
    device = capturing(tmp_path, HostDevice())
    a, b = bound(device, b"12345678", bytes(8))
    for _ in range(2):
        device.submit(device.load(copy_program(8, Flag.ONE_SHOT)), [a, b]).wait()
    device.close()
    report = replay(open_capture(tmp_path), HostDevice())
    assert (report.ok, report.submissions) == (True, 2)


def test_work_that_fails_fails_again(tmp_path: Path) -> None:
    gather = umd.translate("Gather", [F32, umd.TensorDesc("i64", (1,))])
    device = capturing(tmp_path)
    program = device.load(gather)
    a, index, out = bound(device, np.zeros(4, np.float32), np.array([9]), np.zeros(1, np.float32))
    ticket = device.submit(program, [a, index, out])
    with pytest.raises(umd.UmdError):
        ticket.wait()
    device.close()
    (result,) = events_of(tmp_path, Result)
    assert result == Result(0, Status.INDEX_OUT_OF_RANGE, ())
    assert replay(open_capture(tmp_path), SimDevice()).ok


def test_a_replay_says_what_differs(tmp_path: Path) -> None:
    capture = captured_run(tmp_path, *_neg())
    device = SimDevice()
    plain = device.load_kernel

    def doubled(record: Any, parameters: bytes) -> Any:
        return plain(BY_NAME["elementwise_abs_kernel"].record(record.types, record.sizes), parameters)

    device.load_kernel = doubled  # type: ignore[method-assign]  # the fault is planted here
    report = replay(capture, device)
    assert not report.ok
    (mismatch,) = report.mismatches
    assert (mismatch.submission, mismatch.what, mismatch.place) == (0, "output", 1)
    assert str(mismatch) == "binding 1 of submission 0 holds other bytes"


def _neg() -> tuple[Any, Array]:
    return umd.translate("Neg", [F32]), np.arange(4, dtype=np.float32)


def test_outputs_may_be_kept_or_left_out(tmp_path: Path) -> None:
    for outputs, files, equal in (("hashes", 1, 1), ("bytes", 2, 1), ("none", 1, 0)):
        folder = tmp_path / outputs
        device = capturing(folder, outputs=outputs)
        device.run(*[_neg()[0], [_neg()[1]]])
        device.close()
        assert len(list((folder / "data").iterdir())) == files
        assert replay(open_capture(folder), SimDevice()).equal == equal


# limits and ends


def test_a_capture_that_grows_too_large_says_so_and_is_usable(tmp_path: Path) -> None:
    device = CapturingDevice(HostDevice(), Folder(tmp_path, "host:0", limit=5000))
    a, b = bound(device, b"12345678", bytes(8))
    device.submit(device.load(copy_program(8)), [a, b]).wait()
    with pytest.raises(LimitError) as raised:
        device.write(bound(device, bytes(1))[0].buffer, 0, b"x")
        device.write(device.allocate(8000), 0, np.arange(8000, dtype=np.uint8))
    assert (raised.value.limit, raised.value.what) == (5000, f"bytes of the capture in {tmp_path}")
    device.close()
    report = replay(open_capture(tmp_path), HostDevice())
    assert (report.ok, report.submissions) == (True, 1)


def test_a_buffer_that_cannot_be_written_down_is_none(tmp_path: Path) -> None:
    inner = HostDevice()
    device = CapturingDevice(inner, Folder(tmp_path, "host:0", limit=0))
    with pytest.raises(LimitError):
        device.allocate(64)
    assert inner.used == 0
    device.close()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        capturing(tmp_path).allocate(8)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_programs_with_direct_handles_are_refused(tmp_path: Path) -> None:
    recording = Recording()
    source = recording.argument()
    target = recording.argument()
    recording.copy((target, 0, 8), (source, 0, 8))
    command_buffer = recording.finish()
    command_buffer.slots[1] = Slot(SlotKind.HANDLE, 2, 0, 1, 8, 5, 0)

    class Handles(HostDevice):
        def resolve(self, handle: int) -> Any:
            return self.allocate(8)

    device = capturing(tmp_path, Handles())
    (a,) = bound(device, bytes(8))
    with pytest.raises(UnsupportedError, match="direct handles"):
        device.submit(device.load(bytes(command_buffer)), [a])


def test_the_environment_captures_every_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMD_CAPTURE", str(tmp_path))
    idle, busy = umd.open_device("sim:0"), umd.open_device("sim:0,sim:0")
    idle.close()
    busy.run(_neg()[0], [_neg()[1]])
    busy.close()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("sim-0-sim-0-")
    monkeypatch.delenv("UMD_CAPTURE")
    assert open_capture(tmp_path).device == "sim:0,sim:0"
    assert replay(open_capture(tmp_path), umd.open_device("sim:0")).ok


@pytest.mark.parametrize(("name", "value"), [("UMD_CAPTURE_LIMIT", "much"), ("UMD_CAPTURE_OUTPUTS", "all")])
def test_a_wrong_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("UMD_CAPTURE", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(AttributeValueError) as raised:
        umd.open_device("sim:0")
    assert raised.value.attribute == name


ENDLESS = """
import numpy as np
import umd_core as umd
from umd_core.device import Binding

device = umd.open_device("sim:0")
program = device.load(umd.translate("Add", [umd.TensorDesc("f32", (64,))] * 2))
buffers = [device.allocate(256) for _ in range(3)]
step = 0
while True:
    device.write(buffers[step % 2], 0, np.full(64, step, np.float32))
    device.submit(program, [Binding(buffer, 0, 256) for buffer in buffers]).wait()
    step += 1
    print(step, flush=True)
"""


def test_a_killed_process_leaves_a_usable_capture(tmp_path: Path) -> None:
    environment = {**os.environ, "UMD_CAPTURE": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline()
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    capture = open_capture(tmp_path)
    report = replay(capture, SimDevice())
    assert not capture.complete
    assert report.ok
    assert report.submissions >= 20
    assert report.equal >= 20


def test_the_manifest_says_how_the_run_ended(tmp_path: Path) -> None:
    command_buffer, inputs = network(2)
    device = capturing(tmp_path)
    device.run(command_buffer, inputs)
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "format": "umd-capture",
        "version": 1,
        "device": "sim:0",
        "complete": None,
    }
    device.close()
    ended = json.loads((tmp_path / "manifest.json").read_text())["complete"]
    lines = (tmp_path / "events.jsonl").read_bytes()
    held = [file for folder in ("programs", "data") for file in (tmp_path / folder).iterdir()]
    assert ended == {"events": lines.count(b"\n"), "bytes": len(lines) + sum(file.stat().st_size for file in held)}
