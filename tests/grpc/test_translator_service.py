"""The Translator and Graphs services of a running server."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from umd_core.encoding import decode
from umd_core.encoding.original import decode_original
from umd_core.errors import DTypeError, InputCountError, ShapeError, Status, UmdError, UnknownOpError, UnsupportedError
from umd_grpc._pb.umd import graph_pb2, translator_pb2, translator_pb2_grpc
from umd_grpc.client import AsyncClient, Client, Request, Translation
from umd_grpc.messages import wire
from umd_grpc.messages.graph_messages import write_graph
from umd_grpc.server.translator import REQUEST_LIMIT, REQUESTS_LIMIT

X = umd.TensorDesc("f32", (32, 64))
LIMIT = 64 << 20
AXIS = {"axis": "0"}
Connect = Callable[[str], Any]
TranslatorStub: Any = translator_pb2_grpc.TranslatorStub  # generated without annotations


@pytest.fixture
def channel(server: Any, connect: Connect) -> Any:
    return connect(server.address)


@pytest.fixture
def stub(channel: Any) -> Any:
    return TranslatorStub(channel)


def request(op: str = "Add", shape: tuple[int, ...] = (4, 8), count: int = 2, **fields: Any) -> Any:
    message = translator_pb2.TranslateRequest(op_type=op, **fields)
    for index in range(count):
        message.inputs.add(name=f"t{index}", shape=shape, dtype="torch.float32")
    return message


def submit(stub: Any, *messages: Any) -> list[list[Any]]:
    """Returns the responses to each message."""
    answers = list(stub.SubmitBatch(iter(messages), timeout=60))
    assert len(answers) == len(messages)
    return [list(answer.response) for answer in answers]


def test_formats(stub: Any) -> None:
    original = stub.Translate(request(), timeout=30)
    assert original.format == translator_pb2.FORMAT_ORIGINAL
    assert decode_original(original.command_buffer) == ("elementwise_add_kernel", 32, 1, 256)
    assert original.kernel_name == "elementwise_add_kernel"
    v1 = stub.Translate(request(format=translator_pb2.FORMAT_V1), timeout=30)
    x = umd.TensorDesc("f32", (4, 8))
    assert v1.command_buffer == bytes(umd.translate("Add", [x, x]))
    assert [tuple(desc.shape) for desc in v1.outputs] == [(4, 8)]
    refused = stub.Translate(request("Concat", attributes=AXIS, format=translator_pb2.FORMAT_ORIGINAL), timeout=30)
    assert (refused.status, refused.command_buffer) == (Status.UNSUPPORTED, b"")
    assert stub.Translate(request(format=7), timeout=30).status == Status.UNSUPPORTED


def test_several_launches_come_as_v1_when_no_format_is_asked_for(stub: Any) -> None:
    answer = stub.Translate(request("Concat", attributes=AXIS), timeout=30)
    assert answer.format == translator_pb2.FORMAT_V1
    assert len(decode(answer.command_buffer).commands) == 2


@pytest.mark.parametrize(
    ("message", "status", "named"),
    [
        (request("Frobnicate"), Status.UNKNOWN_OP, "Frobnicate"),
        (request(count=3), Status.INPUT_COUNT, "Add"),
        (request(shape=(-1,)), Status.SHAPE, "-1"),
        (request("Relu", count=1, attributes={"alpha": "1"}), Status.ATTRIBUTE, "alpha"),
        (request("Softmax", count=1, attributes={"axis": "x"}), Status.ATTRIBUTE, "axis"),
        (request(shape=(2**40, 2**40)), Status.LIMIT, "element count"),
        (request(device_id="sim:9"), Status.UNSUPPORTED, "sim:0"),
    ],
    ids=["op", "count", "shape", "attribute", "value", "overflow", "device"],
)
def test_bad_requests_have_their_status(stub: Any, message: Any, status: Status, named: str) -> None:
    message.request_id = 77
    answer = stub.Translate(message, timeout=30)
    assert (answer.status, answer.request_id, answer.command_buffer) == (status, 77, b"")
    assert named in answer.msg


def test_integers_beyond_doubles_travel_as_text(client: Client) -> None:
    """Slice's `starts` may be any int64; a Struct's numbers are doubles."""
    translation = client.translate("Slice", [X], {"starts": [0, 0], "ends": [2**63 - 1, 2**53 + 1]})
    assert translation.outputs == (X,)


def test_a_repeat_is_the_same_answer(stub: Any) -> None:
    """Cached answers differ from the first one in their id and timing alone."""
    message = request(shape=(3, 5), format=translator_pb2.FORMAT_V1)
    answers = []
    for number in (1, 0, 2**63 - 1, -1, 300):
        message.request_id = number
        answers.append(stub.Translate(message, timeout=30))
        assert answers[-1].request_id == number
    assert [answer.timing.cached for answer in answers] == [False, True, True, True, True]
    assert answers[0].timing.translate_ns > 0
    for answer in answers:
        answer.ClearField("timing")
        answer.request_id = 0
    assert all(answer == answers[0] for answer in answers)


def test_unknown_fields_and_repeated_ids_do_no_harm(channel: Any) -> None:
    raw = request(shape=(7,)).SerializeToString()
    call = channel.unary_unary("/umd.Translator/Translate")
    for extra, number in ((b"", 0), (b"\xf2\x7f\x02hi", 0), (b"\x20\x05\x20\x06", 6), (b"\x20\x05", 5)):
        answer = translator_pb2.TranslateResponse.FromString(call(raw + extra, timeout=30))
        assert (answer.status, answer.request_id) == (0, number)


# batches


def test_each_message_has_one_answer_with_as_many_responses(stub: Any) -> None:
    sizes = [1, 3, 1000, 2]
    number = 0
    messages = []
    for size in sizes:
        messages.append(translator_pb2.SubmitRequest())
        for _ in range(size):
            number += 1
            messages[-1].request.append(request(shape=(number % 50 + 1,), request_id=number))
    answers = submit(stub, *messages)
    assert [len(answer) for answer in answers] == sizes
    flat = [response for answer in answers for response in answer]
    assert [response.request_id for response in flat] == list(range(1, number + 1))
    assert [decode_original(response.command_buffer).element_count for response in flat] == [
        i % 50 + 1 for i in range(1, number + 1)
    ]


def test_a_bad_request_has_its_own_status_and_the_rest_goes_on(stub: Any) -> None:
    message = translator_pb2.SubmitRequest(
        request=[request(), request("Nope"), request(count=1), request("Relu", count=1)]
    )
    (first, empty, last) = submit(stub, message, translator_pb2.SubmitRequest(), message)
    assert [response.status for response in first] == [0, Status.UNKNOWN_OP, Status.INPUT_COUNT, 0]
    assert [response.status for response in empty] == [Status.LIMIT]
    assert [response.status for response in last] == [0, Status.UNKNOWN_OP, Status.INPUT_COUNT, 0]


def test_answers_flow_while_requests_still_arrive(stub: Any) -> None:
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = stub.SubmitBatch(iter(requests.get, None), timeout=60)
    for number in range(1, 6):
        requests.put(translator_pb2.SubmitRequest(request=[request(request_id=number)]))
        assert [response.request_id for response in next(answers).response] == [number]
    requests.put(None)
    assert list(answers) == []


@pytest.fixture
def raw_batch(channel: Any) -> Callable[..., list[Any]]:
    """Sends bytes as messages of one SubmitBatch; returns the parsed answers."""
    call = channel.stream_stream("/umd.Translator/SubmitBatch")
    return lambda *messages: [translator_pb2.SubmitResponse.FromString(raw) for raw in call(iter(messages), timeout=60)]


GOOD = translator_pb2.SubmitRequest(request=[request(request_id=5)]).SerializeToString()


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.binary(max_size=30).map(lambda b: wire.head(1, len(b)) + b)), max_size=5
    )
)
def test_hostile_bytes_are_answered_and_nothing_else_is_lost(server: Any, hostile: list[bytes]) -> None:
    messages = [GOOD, *(part for raw in hostile for part in (raw, GOOD))]
    channel: Any = grpc.insecure_channel(server.address)
    with channel:
        call = channel.stream_stream("/umd.Translator/SubmitBatch")
        answers = [translator_pb2.SubmitResponse.FromString(raw) for raw in call(iter(messages), timeout=60)]
    assert len(answers) == len(messages)
    for index, answer in enumerate(answers):
        if index % 2 == 0:
            assert [(response.status, response.request_id) for response in answer.response] == [(0, 5)]
        else:
            assert answer.response
            assert all(response.status for response in answer.response)


def test_limits_of_a_batch(raw_batch: Callable[..., list[Any]]) -> None:
    too_many = b"\x0a\x00" * (REQUESTS_LIMIT + 1)
    large = request(attributes={"a": "x" * REQUEST_LIMIT}).SerializeToString()
    one_large = wire.head(1, len(large)) + large + GOOD
    first, second, third = raw_batch(too_many, one_large, GOOD)
    assert [response.status for response in first.response] == [Status.LIMIT]
    assert [response.status for response in second.response] == [Status.LIMIT, 0]
    assert [response.status for response in third.response] == [0]


def test_an_answer_never_exceeds_the_limit_of_a_message(raw_batch: Callable[..., list[Any]]) -> None:
    """A thousand Concats of 60 inputs are some 10 MB; many of them are answered as far as a message goes."""
    body = request("Concat", count=60, shape=(2,), attributes=AXIS).SerializeToString()
    count = 12_000
    (answer,) = raw_batch((wire.head(1, len(body)) + body) * count)
    statuses = [response.status for response in answer.response]
    assert len(statuses) == count
    assert set(statuses) == {0, Status.LIMIT}
    assert sum(len(response.command_buffer) for response in answer.response) < LIMIT


def test_streams_cancelled_after_one_answer_do_not_hold_up_the_next_call(stub: Any) -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield translator_pb2.SubmitRequest(request=[request(request_id=1)] * 200)

    for _ in range(8):
        call = stub.SubmitBatch(endless(), timeout=60)
        assert len(next(call).response) == 200
        call.cancel()
    assert stub.Translate(request(), timeout=5).status == 0


def test_a_hundred_clients_at_once(server: Any) -> None:
    async def one(number: int) -> list[int]:
        async with AsyncClient(server.address) as client:
            x = umd.TensorDesc("f32", (number + 1,))
            batch = [Request("Add", [x, x]), Request("Nope", []), Request("Relu", [x])] * 5
            answers = [answer async for answer in client.submit_batch(batch)]
            single = await client.translate("Relu", [x])
            shapes = [a.outputs[0].shape for a in answers if isinstance(a, Translation)]
            assert shapes == [(number + 1,)] * 10
            assert single.outputs[0].shape == (number + 1,)
            return [int(isinstance(answer, UnknownOpError)) for answer in answers]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(one(number) for number in range(100)))

    assert asyncio.run(all_of_them()) == [[0, 1, 0] * 5] * 100


# the client library


def test_the_client_translates(client: Client) -> None:
    translation = client.translate("Add", [X, np.zeros((32, 64), np.float32)])
    assert translation.command_buffer == bytes(umd.translate("Add", [X, X]))
    assert (translation.kernel_name, translation.outputs) == ("elementwise_add_kernel", (X,))
    assert client.translate("Reshape", [X, np.array([64, 32])]).outputs[0].shape == (64, 32)
    assert client.translate("Softmax", [X], {"axis": -1}, device="sim:0").workspace_size >= 0
    assert client.translate("Clip", [X, None, umd.TensorDesc("f32", ())]).outputs == (X,)
    view = np.zeros((8, 8), np.float32)[::2, ::-1]
    assert client.translate("Relu", [view]).command_buffer == bytes(umd.translate("Relu", [view]))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error"),
    [
        ("Frobnicate", [X], {}, UnknownOpError),
        ("Add", [X], {}, InputCountError),
        ("Add", [X, umd.TensorDesc("f32", (5,))], {}, ShapeError),
        ("Add", [X, umd.TensorDesc("f64", (32, 64))], {}, DTypeError),
    ],
    ids=["op", "count", "shape", "dtype"],
)
def test_errors_are_those_of_the_library(client: Client, op: str, inputs: Any, attributes: Any, error: Any) -> None:
    with pytest.raises(error) as there:
        client.translate(op, inputs, attributes)
    with pytest.raises(error) as here:
        umd.translate(op, inputs, **attributes)
    assert str(there.value) == str(here.value)
    assert there.value.facts() == here.value.facts()


def test_the_client_submits_batches(client: Client) -> None:
    requests = [Request("Add", [umd.TensorDesc("f32", (i % 7 + 1,))] * 2) for i in range(2500)]
    requests[1200] = Request("Nope", [])
    answers = list(client.submit_batch(iter(requests)))
    assert [isinstance(answer, Translation) for answer in answers] == [i != 1200 for i in range(2500)]
    assert isinstance(answers[1200], UnknownOpError)
    assert answers[1200].facts()["request_id"] == 1201
    assert [a.request_id for a in answers if isinstance(a, Translation)][:3] == [1, 2, 3]


def graph() -> umd.Graph:
    found = umd.Graph("two ops")
    found.input("x", X)
    found.input("w", umd.TensorDesc("f32", (64, 16)))
    hidden = found.add("MatMul", ["x", "w"])
    found.output(found.add("Relu", [hidden]))
    return found


def test_a_graph_is_translated(client: Client) -> None:
    here = umd.translate(graph())
    there = client.translate_graph(graph())
    assert bytes(there) == bytes(here)
    assert (there.inputs, there.outputs, there.aliases) == (tuple(here.inputs), tuple(here.outputs), here.aliases)

    async def by_asyncio() -> bytes:
        async with AsyncClient(client.target) as asynchronous:
            assert (await asynchronous.describe()).devices[0].name == "sim:0"
            return bytes(await asynchronous.translate_graph(graph()))

    assert asyncio.run(by_asyncio()) == bytes(here)


def test_a_graph_that_fuses_is_fused_by_the_server(client: Client) -> None:
    def three_ops() -> umd.Graph:
        found = umd.Graph("chain")
        x = found.input("x", X)
        found.output(found.add("Relu", [found.add("Neg", [found.add("Mul", [x, x])])]))
        return found

    plain, fused = three_ops(), three_ops()
    fused.fuses = True
    assert bytes(client.translate_graph(fused)) == bytes(umd.translate(fused))
    assert len(client.translate_graph(fused).commands) < len(client.translate_graph(plain).commands)


@pytest.fixture
def translate_graph(channel: Any) -> Callable[[bytes], list[Any]]:
    """Sends bytes to TranslateGraph; returns the messages of the answer."""
    call = channel.unary_stream("/umd.graph.Graphs/TranslateGraph", None, graph_pb2.TranslateGraphResponse.FromString)
    return lambda raw: list(call(raw, timeout=60))


def test_a_graph_comes_in_chunks(translate_graph: Callable[[bytes], list[Any]]) -> None:
    large = umd.Graph("large")
    value = large.input("x", X)
    for _ in range(200):
        value = large.add("Relu", [value])
    large.output(value)
    asked = graph_pb2.TranslateGraphRequest(graph=write_graph(large), request_id=3, chunk_size=4096)
    header, *chunks = translate_graph(asked.SerializeToString())
    assert header.header.request_id == 3
    assert header.header.command_count == 200
    assert [len(part.chunk) for part in chunks[:-1]] == [4096] * (len(chunks) - 1)
    assert b"".join(part.chunk for part in chunks) == bytes(umd.translate(large))


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x02\x0a\xff"], ids=["no-message", "no-utf8"])
def test_no_graph_is_answered_with_a_header(translate_graph: Callable[[bytes], list[Any]], raw: bytes) -> None:
    (only,) = translate_graph(raw)
    assert only.header.status == Status.BAD_BYTES


def test_a_graph_that_cannot_be_translated(client: Client) -> None:
    bad = umd.Graph("bad")
    bad.input("x", X)
    bad.output(bad.add("Frobnicate", ["x"]))
    with pytest.raises(UnknownOpError):
        client.translate_graph(bad)
    with pytest.raises(UnsupportedError, match="sim:0"):
        client.translate_graph(graph(), device="sim:5")
    missing = umd.Graph("missing")
    missing.output(missing.add("Relu", ["nowhere"]))
    with pytest.raises(UmdError):
        client.translate_graph(missing)


def test_one_client_serves_many_threads(client: Client) -> None:
    found: list[Any] = []

    def ask(number: int) -> None:
        x = umd.TensorDesc("f32", (number,))
        found.append(client.translate("Relu", [x]).outputs == (x,))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [True] * 8
