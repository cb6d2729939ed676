"""Copies, fills, updates, arena, constants, marks, barriers, and other legal orders."""

from __future__ import annotations

import random

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.testing.checks.tools import Check, copying, same
from umd_core.testing.harness import Arguments
from umd_core.testing.programs import exact_rows, random_arguments, random_program, reference_run, reordered
from umd_core.testing.recording import Recording

PROGRAMS, LENGTH = 6, 14


def _expect(device: Device, recording: Recording, contents: list[bytes]) -> None:
    """Runs a recording twice over the contents and compares with the reference."""
    command_buffer = recording.finish()
    arrays = [np.frombuffer(content, np.uint8) for content in contents]
    wanted = reference_run(command_buffer, arrays)
    program = device.load(bytes(command_buffer))
    arguments = Arguments(device, arrays)
    for turn in ("first", "second"):
        arguments.reset()
        device.submit(program, arguments.bindings).wait()
        for index, (got, want) in enumerate(zip(arguments.read(), wanted, strict=True)):
            same(got, want, f"{turn} submission, argument {index}")
    arguments.free()


def copy(device: Device) -> None:
    """Bytes between buffers and inside one."""
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.copy((b, 3, 7), (a, 1, 7))
    recording.copy((a, 0, 4), (a, 12, 4))
    recording.copy((b, 10, 0), (a, 0, 0))
    _expect(device, recording, [bytes(range(16)), bytes(range(100, 116))])


def fill(device: Device) -> None:
    """Patterns of every size."""
    recording = Recording()
    target = recording.argument()
    for place, size in enumerate((1, 2, 4, 8)):
        recording.fill((target, 32 * place + 8, 16), bytes(range(1, size + 1)))
    recording.fill((target, 0, 0), b"\xff")
    _expect(device, recording, [bytes(range(128))])


def update(device: Device) -> None:
    """Inline bytes, also at the edges of a range."""
    recording = Recording()
    target = recording.argument()
    recording.update(target, 0, b"first")
    recording.update(target, 27, b"later")
    recording.update(target, 9, bytes(range(64, 76)))
    _expect(device, recording, [bytes(32)])


def marks_and_barriers(device: Device) -> None:
    """Marks, barriers and NOPs change nothing."""
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.mark("begin", 7)
    recording.copy((b, 0, 8), (a, 0, 8))
    recording.barrier()
    recording.nop()
    recording.copy((a, 8, 8), (b, 0, 8))
    recording.mark("end", 8)
    _expect(device, recording, [bytes(range(16)), bytes(16)])


def arena_and_constants(device: Device) -> None:
    """Transient memory and constants; neither reaches the arguments but by commands."""
    recording = Recording()
    out = recording.argument()
    arena = recording.arena()
    constants = [recording.constant(bytes([value] * 8)) for value in (3, 5)]
    recording.copy((arena, 0, 8), (constants[0], 0, 8))
    recording.copy((arena, 256, 8), (constants[1], 0, 8))
    recording.copy((out, 0, 8), (arena, 256, 8))
    recording.copy((out, 8, 8), (arena, 0, 8))
    _expect(device, recording, [bytes(24)])


def nothing(device: Device) -> None:
    """A program without commands, and one whose only command does nothing."""
    device.submit(device.load(bytes(Recording().finish())), []).wait()
    recording = Recording()
    recording.nop()
    device.submit(device.load(bytes(recording.finish())), []).wait()


def same_bytes_same_program(device: Device) -> None:
    """A command buffer decoded twice runs the same."""
    raw = bytes(copying().finish())
    arguments = Arguments(device, [np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)])
    for _ in range(2):
        arguments.reset()
        device.submit(device.load(raw), arguments.bindings).wait()
        same(arguments.read()[1], np.arange(16, dtype=np.uint8), "copy")
    arguments.free()


def legal_orders(device: Device) -> None:
    """Random programs equal the reference, in program order and in other legal orders."""
    rows = exact_rows(device.caps().supports)
    for seed in range(PROGRAMS):
        generator = np.random.default_rng(seed)
        program = random_program(generator, rows, LENGTH) if rows else _copies(generator)
        contents = random_arguments(generator, program)
        wanted = reference_run(program, contents)
        pick = random.Random(seed).randrange
        arguments = Arguments(device, contents)
        for turn, variant in enumerate((program, reordered(program, pick), reordered(program, pick))):
            loaded = device.load(bytes(variant))
            for _ in range(2):
                arguments.reset()
                device.submit(loaded, arguments.bindings).wait()
                for index, (got, want) in enumerate(zip(arguments.read(), wanted, strict=True)):
                    same(got, want, f"program {seed}, order {turn}, argument {index}")
        arguments.free()


def _copies(generator: np.random.Generator) -> CommandBuffer:
    return copying(int(generator.integers(1, 64))).finish()


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        copy, fill, update, marks_and_barriers, arena_and_constants, nothing, same_bytes_same_program, legal_orders,
    )
}  # fmt: skip
