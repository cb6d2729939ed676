"""docs/service.md says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2, translator_pb2
from umd_grpc.limits import DEFAULT
from umd_grpc.server.translator import REQUEST_LIMIT, REQUESTS_LIMIT

TEXT = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")


def test_its_blocks_run(server: Any) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    code = "\n".join(blocks).replace("127.0.0.1:50051", server.address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("status", Status)
def test_every_status_is_listed(status: Status) -> None:
    (named,) = re.findall(rf"\| {int(status)} ([a-z][^|]*?) \|", TEXT)
    assert set(named.split()) & set(status.name.lower().split("_"))


def test_every_frame_is_listed() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \|", TEXT.split("| frame |")[1], re.MULTILINE)
    listed = {name for row in rows for name in row.split(", ")}
    assert {field.name for field in runtime_pb2.Frame.DESCRIPTOR.oneofs_by_name["command"].fields} <= listed


def test_the_limits_are_those_of_the_code() -> None:
    mib = 1 << 20
    said = {
        f"{DEFAULT.message // mib} MiB a message": DEFAULT.message % mib,
        f"{REQUEST_LIMIT // mib} MiB a translate request": REQUEST_LIMIT % mib,
        f"{REQUESTS_LIMIT:,} requests in a message": 0,
        f"{DEFAULT.frame // mib} MiB a session frame": DEFAULT.frame % mib,
        f"{DEFAULT.frames:,} frames in a message": 0,
        f"{DEFAULT.inline // mib} MiB an inline read or write": DEFAULT.inline % mib,
        f"{DEFAULT.transfer // mib} MiB a transfer": DEFAULT.transfer % mib,
        f"{DEFAULT.handles:,} handle ids": 0,
        f"{DEFAULT.waits:,} unfinished": 0,
        f"{DEFAULT.unread // mib} MiB of them": 0,
        f"{DEFAULT.credit // mib} MiB waiting": 0,
        f"for {DEFAULT.stall_seconds:g} s fails": 0,
    }
    text = " ".join(TEXT.split())
    assert [phrase for phrase, rest in said.items() if phrase not in text or rest] == []


def test_the_original_fields_keep_their_numbers() -> None:
    numbers = {
        "TensorDesc": {"name": 1, "shape": 2, "dtype": 3},
        "TranslateRequest": {"op_type": 1, "inputs": 2, "attributes": 3, "request_id": 4},
        "TranslateResponse": {"status": 1, "command_buffer": 2, "kernel_name": 3, "msg": 4},
        "SubmitRequest": {"request": 1},
        "SubmitResponse": {"response": 1},
    }
    for message, fields in numbers.items():
        found = translator_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name
        assert {name: found[name].number for name in fields} == fields
