"""The device model: rooflines, tails, queues and memory beside times worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from umd_cli.tensors import tensor
from umd_core.commands import Barrier, CommandBuffer
from umd_core.device import CompositeDevice, SequentialDevice
from umd_core.device.estimation import memory_needed, trace_events
from umd_core.errors import OutOfMemoryError
from umd_sim.device import SimDevice
from umd_sim.options import Options
from umd_sim.timing import estimate, fill
from umd_sim.timing_profile import Cache, Profile, packaged, read_profile
from umd_sim.timing_queues import Span, Work, schedule

ROUND = Profile(
    name="round numbers",
    source="by hand",
    memory=1 << 30,
    bandwidth=1e9,
    launch=1e-6,
    processors=10,
    workgroups=8,
    invocations=2048,
    workgroup_memory=1 << 16,
    products={"float32": 1e12, "float16": 4e12},
    arithmetic={"float32": 1e11},
    functions={"any": 1e10, "exp": 1e9},
)


def seconds(op: str, *inputs: str, profile: Profile = ROUND, **attributes: Any) -> float:
    return estimate(umd.translate(op, [tensor(text) for text in inputs], **attributes), profile).seconds


def test_the_slower_of_arithmetic_and_memory_decides() -> None:
    count = 10 * 8 * 256 * 5  # five full waves
    moved = 2 * 4 * count / 1e9
    assert seconds("Neg", f"f32[{count}]") == pytest.approx(1e-6 + moved)
    quick = replace(ROUND, bandwidth=1e15)
    assert seconds("Neg", f"f32[{count}]", profile=quick) == pytest.approx(1e-6 + count / 1e11)
    assert seconds("Exp", f"f32[{count}]", profile=quick) == pytest.approx(1e-6 + count / 1e9)
    assert seconds("Tanh", f"f32[{count}]", profile=quick) == pytest.approx(1e-6 + count / 1e10)


def test_products_go_at_the_rate_of_their_type() -> None:
    quick = replace(ROUND, bandwidth=1e15)
    work = 2 * 640 * 640 * 64  # 100 tiles of 64 x 64: ten for each processor
    assert seconds("MatMul", "f32[640,64]", "f32[64,640]", profile=quick) == pytest.approx(1e-6 + work / 1e12)
    assert seconds("MatMul", "f16[640,64]", "f16[64,640]", profile=quick) == pytest.approx(1e-6 + work / 4e12)
    assert seconds("MatMul", "i32[640,64]", "i32[64,640]", profile=quick) == pytest.approx(1e-6 + work / 1e12)


def test_a_launch_alone_is_the_floor() -> None:
    assert seconds("Neg", "f32[0]") == 0.0
    timeline = estimate(umd.translate("Neg", [tensor("f32[1]")]), replace(ROUND, bandwidth=1e15))
    assert timeline.seconds == pytest.approx(1e-6, rel=0.01)
    assert timeline.commands[0].bound == "launch"


def test_one_workgroup_too_many_takes_as_long_as_a_whole_round() -> None:
    quick = replace(ROUND, bandwidth=1e15, launch=0.0)
    full, one_more, double = (seconds("Neg", f"f32[{256 * groups}]", profile=quick) for groups in (10, 11, 20))
    assert one_more == pytest.approx(2 * full)
    assert double == pytest.approx(2 * full)


def test_filling() -> None:
    assert tuple(fill((5, 1, 1, 256, 1, 1, 0), ROUND)) == pytest.approx((5 / 80, 0.5, 0.5 * 256 / 2048))
    assert fill((80, 1, 1, 256, 1, 1, 0), ROUND) == (1.0, 1.0, 1.0)
    waves, balance, occupancy = fill((80, 1, 1, 256, 1, 1, 1 << 15), ROUND)  # two at once by workgroup memory
    assert (waves, balance, occupancy) == (4.0, 1.0, 0.25)
    few = fill((10, 1, 1, 64, 1, 1, 0), ROUND)
    assert few.occupancy == pytest.approx(64 / 2048)


def test_few_invocations_do_not_fill_the_memory_pipe() -> None:
    still = replace(ROUND, launch=0.0, arithmetic={"float32": 1e15})
    alone = seconds("Neg", "f32[256]", profile=still)  # one workgroup: 1/80 of what the device holds
    assert alone == pytest.approx(2 * 4 * 256 / 1e9 * 0.25 * 80)


def test_what_fits_into_a_cache_is_as_fast_as_the_cache() -> None:
    cached = replace(ROUND, launch=0.0, caches=(Cache(1 << 20, 4e9),), arithmetic={"float32": 1e15})
    inside, outside = 2 * 4 * 102400, 2 * 4 * 204800
    assert seconds("Neg", "f32[102400]", profile=cached) == pytest.approx(inside / 4e9)
    assert seconds("Neg", "f32[204800]", profile=cached) == pytest.approx(outside / 1e9)


def test_what_was_measured_of_a_family_scales_its_roof() -> None:
    plain = replace(ROUND, launch=0.0)
    fitted = replace(plain, launches={"rows": 3e-6}, efficiency={"rows": 0.5})
    assert seconds("Softmax", "f32[800,256]", profile=fitted) == pytest.approx(
        3e-6 + 2 * seconds("Softmax", "f32[800,256]", profile=plain)
    )
    assert seconds("Neg", "f32[4096]", profile=fitted) == seconds("Neg", "f32[4096]", profile=plain)


def test_commands_follow_each_other() -> None:
    graph = umd.Graph()
    x = graph.input("x", umd.TensorDesc("f32", (4096,)))
    for op in ("Exp", "Neg", "Tanh"):
        x = graph.add(op, [x])
    graph.output(x)
    timeline = estimate(umd.translate(graph), ROUND)
    assert [command.name for command in timeline.commands] == [
        f"elementwise_{op}_kernel" for op in ("exp", "neg", "tanh")
    ]
    ends = [0.0, *(command.start + command.seconds for command in timeline.commands)]
    assert [command.start for command in timeline.commands] == pytest.approx(ends[:-1])
    assert timeline.seconds == pytest.approx(ends[-1])
    assert [command.node for command in timeline.commands] == ["Exp", "Neg", "Tanh"]


# queues


def work(queue: int, took: float, *deps: int, launch: float = 0.0, share: float = 1.0, barrier: bool = False) -> Work:
    return Work(queue, deps, barrier, launch, took, share)


def test_queues_share_the_device() -> None:
    assert schedule([work(0, 2.0), work(1, 2.0)]) == [Span(0, 4), Span(0, 4)]
    assert schedule([work(0, 2.0, share=0.5), work(1, 2.0, share=0.5)]) == [Span(0, 2), Span(0, 2)]
    assert schedule([work(0, 1.0), work(1, 3.0)]) == [Span(0, 2), Span(0, 4)]


def test_launches_of_one_queue_hide_behind_work_of_another() -> None:
    assert schedule([work(0, 4.0), work(1, 1.0, launch=4.0)]) == [Span(0, 4), Span(0, 5)]


def test_dependencies_and_barriers_are_waited_for() -> None:
    assert schedule([work(0, 1.0), work(1, 1.0, 0)]) == [Span(0, 1), Span(1, 2)]
    spans = schedule([work(0, 2.0, share=0.5), work(1, 1.0, share=0.5), work(1, 0.0, barrier=True), work(2, 1.0)])
    assert spans == [Span(0, 2), Span(0, 1), Span(2, 2), Span(2, 3)]


@st.composite
def programs(draw: Any) -> list[Work]:
    count = draw(st.integers(1, 12))
    times = st.floats(0, 4, allow_nan=False).map(lambda value: round(value, 2))
    return [
        work(
            draw(st.integers(0, 2)),
            draw(times),
            *sorted(draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else ()),
            launch=draw(times),
            share=draw(st.sampled_from((0.25, 0.5, 1.0))),
            barrier=draw(st.booleans()) and draw(st.booleans()),
        )
        for index in range(count)
    ]


@given(programs())
def test_any_schedule_keeps_order_and_is_no_faster_than_the_device(works: list[Work]) -> None:
    spans = schedule(works)
    for index, (one, span) in enumerate(zip(works, spans, strict=True)):
        assert span.end - span.start >= one.launch + one.seconds - 1e-9
        before = [spans[dep].end for dep in one.deps]
        before += [spans[i].end for i in range(index) if works[i].queue == one.queue or one.barrier or works[i].barrier]
        assert all(end <= span.start + 1e-9 for end in before)
    end = max(span.end for span in spans)
    assert end >= sum(one.seconds * one.share for one in works) - 1e-9
    assert end <= sum(one.launch + one.seconds for one in works) + 1e-9


def test_a_barrier_in_a_program_is_one() -> None:
    buffer = umd.translate("Neg", [tensor("f32[1024]")])
    twice = CommandBuffer(kernels=buffer.kernels, slots=buffer.slots, inputs=buffer.inputs, outputs=buffer.outputs)
    twice.commands = [buffer.commands[0]._replace(queue=1), Barrier(), buffer.commands[0]._replace(queue=2)]
    first, second = estimate(twice, ROUND).commands
    assert (first.queue, second.queue, second.command) == (1, 2, 2)
    assert second.start == pytest.approx(first.seconds)


# memory


def test_memory_that_a_program_needs() -> None:
    graph = umd.Graph()
    x = graph.input("x", umd.TensorDesc("f32", (1000,)))
    table = graph.constant([1.0] * 10, "table")
    graph.output(graph.add("Exp", [graph.add("Neg", [x])]))
    graph.output(graph.add("Neg", [table]))
    buffer = umd.translate(graph)
    arguments = 2 * 4000 + buffer.outputs[1].byte_size
    constants = sum(map(len, buffer.constants))
    assert constants > 0
    assert memory_needed(buffer) == arguments + constants + buffer.arena_size
    again = umd.Graph()
    again.input("x", umd.TensorDesc("f32", (1000,)))
    again.output(again.add("Neg", ["x"]), alias="x")
    assert memory_needed(umd.translate(again)) == 4000


def test_a_profile_gives_the_device_its_memory() -> None:
    with_t4 = umd.open_device("sim:0?profile=t4")
    assert with_t4.caps().memory == read_profile("t4").memory == 16 * 10**9
    with pytest.raises(OutOfMemoryError) as raised:
        with_t4.allocate(17 * 10**9)
    assert (raised.value.asked, raised.value.capacity) == (17 * 10**9, 16 * 10**9)
    assert umd.open_device("sim:0?profile=t4&memory=1MiB").caps().memory == 1 << 20


def test_what_is_lacking_is_said_before_anything_is_allocated() -> None:
    device = SimDevice(Options(memory=1 << 20))
    buffer = umd.translate("Neg", [tensor("f32[1048576]")])
    timeline = device.estimate(buffer)
    assert (timeline.needed, timeline.capacity, timeline.lacking) == (8 << 20, 1 << 20, 7 << 20)
    assert device.estimate(umd.translate("Neg", [tensor("f32[16]")])).lacking == 0
    assert device.used == 0


# devices that say, and what they say


def test_only_devices_that_estimate_claim_it() -> None:
    sim = umd.open_device("sim:0")
    assert isinstance(sim, SequentialDevice)
    assert "estimate" in sim.caps().flags
    assert "estimate" not in CompositeDevice([sim]).caps().flags


@pytest.mark.parametrize("name", ["h200", "a100", "t4"])
def test_no_profile_of_a_card_claims_more_than_its_data_sheet(name: str) -> None:
    profile = read_profile(name)
    buffer = umd.translate("MatMul", [tensor("f16[8192,8192]"), tensor("f16[8192,8192]")])
    (command,) = estimate(buffer, profile).commands
    assert command.operations / command.seconds <= profile.products["float16"]
    assert command.operations / command.seconds > 0.7 * profile.products["float16"]
    buffer = umd.translate("Neg", [tensor("f32[268435456]")])
    (command,) = estimate(buffer, profile).commands
    assert 0.95 * profile.bandwidth < command.traffic / command.seconds <= profile.bandwidth
    assert "data sheet" in profile.source
    assert "no estimate was compared with this card" in profile.error


def test_faster_cards_are_faster() -> None:
    times = {
        name: seconds("MatMul", "f16[4096,4096]", "f16[4096,4096]", profile=read_profile(name)) for name in packaged()
    }
    assert times["h200"] < times["a100"] < times["t4"] < times["cpu"]


def test_a_trace_is_one_that_perfetto_reads() -> None:
    graph = umd.Graph()
    x = graph.input("x", umd.TensorDesc("f32", (64, 64)))
    graph.output(graph.add("Softmax", [graph.add("MatMul", [x, x])]))
    timeline = estimate(umd.translate(graph), ROUND)
    trace = json.loads(json.dumps(trace_events(timeline)))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["gemm_kernel", "softmax_kernel"]
    assert [event["ts"] for event in events] == pytest.approx([c.start * 1e6 for c in timeline.commands])
    assert [event["dur"] for event in events] == pytest.approx([c.seconds * 1e6 for c in timeline.commands])
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    assert all({"name", "ph", "pid", "tid"} <= event.keys() for event in trace["traceEvents"])
    assert trace["otherData"]["error"] == ROUND.error
