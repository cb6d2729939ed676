"""A client generated from the original protocol's definition, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umd_core.encoding.original import decode_original

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(server: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client got. Its modules cannot live here: both definitions name the same messages."""
    folder = tmp_path_factory.mktemp("original")
    generate = ["-m", "grpc_tools.protoc", f"-I{HERE}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([sys.executable, *generate, str(HERE / "original.proto")], check=True, timeout=60)
    command = [sys.executable, str(HERE / "original_client.py"), server.address]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(folder), "PATH": ""}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("name", "kernel", "count"),
    [("add", "elementwise_add_kernel", 2048), ("matmul", "gemm_kernel", 64), ("relu", "elementwise_relu_kernel", 5)],
)
def test_ops_of_one_launch(found: dict[str, Any], name: str, kernel: str, count: int) -> None:
    answer = found[name]
    assert (answer["status"], answer["kernel_name"], answer["msg"]) == (0, kernel, "")
    assert decode_original(bytes.fromhex(answer["command_buffer"])) == (kernel, count, -(-count // 256), 256)


def test_the_bytes_of_an_add(found: dict[str, Any]) -> None:
    name = b"elementwise_add_kernel"
    counts = (2048).to_bytes(8, "little") + (8).to_bytes(8, "little") + (256).to_bytes(8, "little")
    assert bytes.fromhex(found["add"]["command_buffer"]) == b"UMDCMD" + b"\x16\x00\x00\x00" + name + counts


def test_an_unknown_op_is_status_2_and_named(found: dict[str, Any]) -> None:
    assert found["unknown"]["status"] == 2
    assert "Frobnicate" in found["unknown"]["msg"]
    assert found["unknown"]["command_buffer"] == ""


def test_every_spelling_of_a_convolution_gives_the_same(found: dict[str, Any]) -> None:
    answers = found["convolutions"]
    assert {answer["status"] for answer in answers.values()} == {0}
    assert len({answer["command_buffer"] for answer in answers.values()}) == 1
    decoded = decode_original(bytes.fromhex(answers["plain"]["command_buffer"]))
    assert decoded == ("conv_kernel", 4 * 8 * 8, 1, 256)


def test_a_batch_is_answered_in_order_and_goes_on_after_a_failure(found: dict[str, Any]) -> None:
    statuses = [answer["status"] for answer in found["batch"]]
    assert statuses == [0] * 10 + [2] + [0] * 40
    counts = [
        decode_original(bytes.fromhex(answer["command_buffer"])).element_count
        for answer in found["batch"]
        if not answer["status"]
    ]
    assert counts == list(range(1, 51))
