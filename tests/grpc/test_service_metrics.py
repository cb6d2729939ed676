"""What operators see: metrics, `umd top`, spans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from tests.grpc.identities import add
from umd_core.errors import UnknownOpError, UnsupportedError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.server.metrics import MetricsServer
from umd_grpc.server.tokens import TokenFile

Samples = dict[tuple[str, str], float]
SIZE = 1 << 20


@pytest.fixture(scope="module")
def metered() -> Iterator[ServerProcess]:
    process = ServerProcess("--metrics", "127.0.0.1:0")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


def scrape(server: ServerProcess) -> Samples:
    """Returns the samples by name and label."""
    with urllib.request.urlopen(f"http://{server.ready['metrics']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happens(metered: ServerProcess) -> None:
    before = scrape(metered)
    with Client(metered.address) as client:
        for _ in range(3):
            client.translate("Add", [umd.TensorDesc("f32", (4,))] * 2)
        with pytest.raises(UnknownOpError):
            client.translate("NoSuchOp", [])
    after = scrape(metered)
    moved = {name: after[name] - before.get(name, 0) for name in after}
    assert moved["umd_translations_total", ""] == 4
    assert moved["umd_translation_failures_total", ""] == 1
    assert moved["umd_cache_hits_total", "translations"] == 2
    assert moved["umd_translate_seconds_count", ""] == 4
    assert after["umd_translate_seconds_bucket", "+Inf"] == after["umd_translate_seconds_count", ""]
    assert moved["umd_received_bytes_total", ""] > 0
    assert after["umd_device_memory_bytes", "sim:0"] > 0


def test_memory_is_told_by_client_and_comes_back(metered: ServerProcess) -> None:
    session = FrameSession(metered.address, client="a test")
    session.do(allocate=pb.Allocate(handles=[1 | 1 << 32], sizes=[SIZE]))
    held = scrape(metered)
    assert held["umd_client_memory_bytes", "local"] == held["umd_device_memory_used_bytes", "sim:0"] == SIZE
    assert held["umd_client_sessions", "local"] == held["umd_sessions", ""] == 1
    session.close()
    metered.wait_for(lambda: scrape(metered)["umd_client_memory_bytes", "local"] == 0)
    metered.wait_for(lambda: scrape(metered)["umd_sessions", ""] == 0)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nonsense", "203.0.113.1:0"])
def test_an_address_that_cannot_be_listened_on(address: str) -> None:
    with pytest.raises(UnsupportedError, match="metrics cannot be served"):
        MetricsServer(address, lambda: pytest.fail("nobody asks"))


def top(*arguments: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "umd_cli", "top", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=variables)


def test_top_shows_sessions(metered: ServerProcess) -> None:
    session = FrameSession(metered.address, client="a test of top")
    session.do(allocate=pb.Allocate(handles=[1 | 1 << 32], sizes=[3 << 20]))
    found = json.loads(top(metered.address, "--json").stdout)
    (own,) = [s for s in found["sessions"] if s["client"] == "a test of top"]
    assert (own["memory"], own["identity"], own["device"], own["detached"]) == (str(3 << 20), "local", "sim:0", False)
    shown = top(metered.address, "--once").stdout
    assert "a test of top" in shown
    assert "3.0 MiB" in shown
    session.close()


def test_states_keep_coming(metered: ServerProcess) -> None:
    with Client(metered.address) as client:
        states = client.watch(0.1)
        first, second = next(states), next(states)
        states.close()  # type: ignore[attr-defined]  # it is a generator
    assert second.uptime_seconds - first.uptime_seconds > 0.05


def test_a_server_that_is_not_there() -> None:
    found = top("127.0.0.1:1", "--once")
    assert found.returncode != 0
    assert "127.0.0.1:1" in found.stderr


def test_others_are_seen_by_administrators_only(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    own, chief = add(tokens, "own"), add(tokens, "chief", admin=True)
    server = start_server("--tokens", str(tmp_path / "tokens.json"), "--state-dir", str(tmp_path))
    bearer = (("authorization", f"Bearer {chief}"),)
    session = FrameSession(server.address, client="the chief's", metadata=bearer)
    states = {}
    for name, token in (("own", own), ("chief", chief)):
        with Client(server.address, token=token) as client:
            states[name] = next(client.watch(0))
    assert [s.client for s in states["chief"].sessions] == ["the chief's"]
    assert list(states["own"].sessions) == []
    assert {i.name for i in states["own"].identities} <= {"own"}
    session.close()


SPANS = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Print(SpanExporter):
    def export(self, spans):
        for span in spans:
            facts = {"name": span.name, "trace": span.context.trace_id, "attributes": dict(span.attributes)}
            sys.stderr.write(json.dumps({"event": "span", **facts}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Print()))
trace.set_tracer_provider(provider)
"""


def test_spans_reach_from_the_client_to_the_device(
    start_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    monkeypatch.setenv("UMD_TRACES", "1")
    serve = f"{SPANS}\nfrom umd_grpc.server.app import main\nsys.exit(main(sys.argv[1:]))"
    server = start_server("--traces", module=("-c", serve))
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    with trace.get_tracer("a test").start_as_current_span("outer") as outer:
        device = umd.open_device(f"grpc://{server.address}/sim:0")
        x = np.ones(8, np.float32)
        (result,) = device.run(umd.translate("Add", [x, x]), [x, x])
        assert result.numpy().tolist() == [2.0] * 8
        device.close()
    server.wait_for(lambda: any(line["name"] == "umd.submit" for line in server.events("span")))
    spans = server.events("span")
    assert {line["trace"] for line in spans if line["name"] == "umd.submit"} == {outer.get_span_context().trace_id}
    (submit,) = [line for line in spans if line["name"] == "umd.submit"]
    assert submit["attributes"] == {"umd.device": "sim:0", "umd.session": 1, "umd.commands": 1}
