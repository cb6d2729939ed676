"""Faults of a GPU: which leave it of no use, and which commands they may have come from."""

from __future__ import annotations

from collections.abc import Iterable

from umd_core.device import Program

FATAL = {
    4: "the driver is shutting down",
    46: "the device is busy or unavailable",
    100: "the device is gone",
    214: "an uncorrectable memory error (ECC)",
    220: "an uncorrectable NVLink error",
    700: "a kernel accessed an illegal address",
    702: "a kernel ran too long",
    709: "the context was destroyed",
    710: "a kernel's assertion failed",
    714: "a kernel's stack is damaged",
    715: "a kernel met an illegal instruction",
    716: "a kernel accessed a misaligned address",
    717: "a kernel used an address of the wrong address space",
    718: "a kernel's program counter left its program",
    719: "a kernel's launch failed",
    999: "an unknown error of the driver",
}
"""Status codes of CUDA's runtime and driver after which the context is of no use, and what they mean.

Source: CUDA Runtime API, "enum cudaError", and CUDA Driver API, "enum CUresult", whose numbers agree.
"""


def span(program: Program) -> str:
    """Returns the commands of a program, first to last, each with its kernel and the last mark before it."""
    steps = program.steps
    if not steps:
        return "a program without commands"
    ends = [steps[0]] if len(steps) == 1 else [steps[0], steps[-1]]
    names = [f"{s.command} ({s.name}{f' after mark {s.mark!r}' if s.mark else ''})" for s in ends]
    return f"command {names[0]}" if len(names) == 1 else f"commands {names[0]} to {names[1]}"


def facts(programs: Iterable[Program]) -> dict[str, object]:
    """Returns kernel, command and mark as an error's facts, where only one command can be meant."""
    steps = {id(program): program.steps for program in programs}.values()
    if [len(one) for one in steps] != [1]:
        return {}
    (step,) = next(iter(steps))
    return {"kernel": step.name, "command": step.command, "mark": step.mark}


def suspects(programs: Iterable[Program], sync: bool) -> str:
    """Returns which commands a fault may have come from that was seen while these programs were under way."""
    spans = list(dict.fromkeys(span(program) for program in programs))
    if not spans:
        return ""
    hint = "" if sync else "; open the device with ?sync=1 to see which"
    return f"[in {', or in '.join(spans)}{hint}]"
