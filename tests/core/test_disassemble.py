"""The disassembler: one line a command, the same as data, nothing that disturbs a terminal; and diff."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from tests.core.encoding_samples import SAMPLES, adamw_patched, add, encoded, every_command
from tests.core.random_buffers import command_buffers
from umd_core.commands import Barrier, Command, CommandBuffer, DebugInfo, Dispatch, Fill, Mark, Nop
from umd_core.disassemble import disassemble, to_json
from umd_core.encoding import decode, diff, encode
from umd_core.errors import DecodeError


def test_a_program_in_text() -> None:
    assert disassemble(encoded("add")) == (
        "umd command buffer 1.0, 648 bytes, 1 commands\n"
        "kernel 0  elementwise_add_kernel<float32> abi 1 rank=1  64 bytes  a b out  0x924a01e08e80855c\n"
        "slot 0  argument r  1200 bytes  aligned 4\n"
        "slot 1  argument r  1200 bytes  aligned 4\n"
        "slot 2  argument w  1200 bytes  aligned 4\n"
        "0  DISPATCH elementwise_add_kernel<float32>  2x1x1 of 256x1x1  r a=slot0[0:1200]  r b=slot1[0:1200]  "
        "w out=slot2[0:1200]  rank=1  extents=[300]  a_offset=0  a_strides=[1]  b_offset=0  b_strides=[1]  "
        "out_offset=0  out_strides=[1]  ; Add node_7 model.py:12\n"
    )


def test_every_command_has_one_line() -> None:
    lines = disassemble(encoded("every_command")).splitlines()
    names = [line.split()[1] for line in lines if line.split()[0].isdigit()]
    assert names == [type(command).__name__.upper() for command in every_command().commands]


def test_the_data_says_what_the_buffer_holds() -> None:
    data = to_json(encoded("add"))
    (command,) = data["commands"]
    assert command == {
        "index": 0,
        "op": "DISPATCH",
        "kernel": "elementwise_add_kernel",
        "abi": 1,
        "types": ["float32"],
        "workgroup_count": [2, 1, 1],
        "workgroup_size": [256, 1, 1],
        "workgroup_memory": 0,
        "refs": [
            {"name": "a", "slot": 0, "access": "r", "offset": 0, "length": 1200},
            {"name": "b", "slot": 1, "access": "r", "offset": 0, "length": 1200},
            {"name": "out", "slot": 2, "access": "w", "offset": 0, "length": 1200},
        ],
        "parameters": {
            "rank": 1,
            "extents": [300],
            "a_offset": 0,
            "a_strides": [1],
            "b_offset": 0,
            "b_strides": [1],
            "out_offset": 0,
            "out_strides": [1],
        },
        "deps": [],
        "queue": 0,
        "debug": {"op": "Add", "node": "node_7", "source": "model.py:12"},
    }


@pytest.mark.parametrize("sample", SAMPLES)
def test_data_is_plain_json(sample: str) -> None:
    data = to_json(encoded(sample))
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_numbers_that_json_lacks_are_text() -> None:
    cb = adamw_patched()
    (first, _) = to_json(cb)["commands"]
    assert first["parameters"]["weight_decay"] == "nan"
    assert math.isclose(first["parameters"]["beta1"], 0.9)


@settings(max_examples=60)
@given(command_buffers())
def test_any_valid_buffer_prints(cb: CommandBuffer) -> None:
    text = disassemble(encode(cb))
    assert text == disassemble(cb)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert sum(line.lstrip()[:1].isdigit() for line in text.splitlines()) >= len(cb.commands)


def test_text_from_a_stranger_is_quoted() -> None:
    cb = CommandBuffer(commands=[Mark(1, "\x1b[2Jx\u202e")], debug=[DebugInfo("\x07", "two\nlines", "plain")])
    line = disassemble(encode(cb)).splitlines()[1]
    assert line == '0  MARK  1 "\\u001b[2Jx\\u202e"  ; "\\u0007" "two\\nlines" plain'


def test_bad_bytes_raise_the_typed_error() -> None:
    for raw in (b"", b"UMDCMD", encoded("add")[:-1]):
        with pytest.raises(DecodeError):
            disassemble(raw)


# diff


def test_equal_buffers_do_not_differ() -> None:
    for sample in SAMPLES:
        assert diff(encoded(sample), decode(encoded(sample))) == []


def test_a_changed_parameter_is_named() -> None:
    cb = add()
    (command,) = cb.commands
    assert isinstance(command, Dispatch)
    record = cb.kernels[0]
    values = record.unpack(command.parameters) | {"extents": (299,)}
    cb.commands[0] = command._replace(parameters=record.pack(**{k: v for k, v in values.items() if k != "rank"}))
    (found,) = diff(add(), cb)
    assert found == ("command 0 parameters.extents[0]", 300, 299)
    assert str(found) == "command 0 parameters.extents[0]: 300 | 299"


def test_inserted_and_removed_commands_are_found_as_such() -> None:
    left, right = every_command(), every_command()
    right.commands = [right.commands[0], Nop(), *shifted(right.commands[1:])]
    found = diff(left, right)
    assert [(d.where, d.left, d.right) for d in found] == [("command 1", None, "NOP")]
    assert [(d.where, d.left, d.right) for d in diff(right, left)] == [("command 1", "NOP", None)]
    assert str(found[0]) == "command 1: only right: NOP"
    assert str(diff(right, left)[0]) == "command 1: only left: NOP"


def shifted(commands: Sequence[Command]) -> list[Command]:
    """Returns the commands with dependencies one higher, as one command more before them makes them."""
    return [command._replace(deps=tuple(d + 1 if d else d for d in command.deps)) for command in commands]


def test_dependencies_queue_debug_and_header_are_compared() -> None:
    left, right = every_command(), every_command()
    last = right.commands[10]
    right.commands[10] = last._replace(deps=(7,), queue=3)
    right.flags = 4
    right.debug = [DebugInfo("x")] * len(right.commands)
    found = {d.where: (d.left, d.right) for d in diff(left, right)}
    assert found["command 10 deps[1]"] == (9, None)
    assert found["command 10 queue"] == (0, 3)
    assert found["flags[0]"] == (None, "DETERMINISTIC")
    assert found["command 0 debug"] == (None, {"op": "x", "node": "", "source": ""})


def test_a_changed_command_is_compared_and_not_called_another() -> None:
    left, right = every_command(), every_command()
    fill = right.commands[2]
    assert isinstance(fill, Fill)
    right.commands[2] = fill._replace(pattern=b"\x09\x09")
    assert [(d.where, d.left, d.right) for d in diff(left, right)] == [("command 2 pattern", "0102", "0909")]


def test_very_different_long_programs_are_compared_by_position() -> None:
    left = CommandBuffer(commands=[Nop()] * 3000)
    right = CommandBuffer(commands=[Barrier()] * 3001)
    found = diff(left, right)
    assert len(found) == 3001
    assert found[0] == ("command 0 op", "NOP", "BARRIER")
    assert found[-1] == ("command 3000", None, "BARRIER")
