"""What a comparison found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

Number = float | int | bool
KINDS = {
    "value": "the values differ",
    "nonfinite": "NaN or an infinity appears that the inputs did not hold",
    "failed": "one device fails",
    "stray": "bytes changed that the command does not own",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A command that is wrong on one of two devices.

    Attributes:
        kind: "value", "nonfinite", "failed" or "stray" (see `KINDS`).
        submission: its number in the capture.
        program: SHA-256 of the program.
        command: index in the program.
        name: the kernel, or "copy", "fill", "update"; "" when only the submission is known.
        types: of the kernel.
        op, node, source, mark: where the command comes from, as far as the program says: op and node of the graph,
            source line of the model, last label before it.
        operand: the written operand.
        element: index of the element in the operand's box; the byte for stray writes.
        devices: names of the two.
        values: what the two computed; None where that is not the point.
        expected: the exact value, None when it is not known.
        at_fault: names of the devices that are wrong; empty when that is not known.
        absolute, relative, ulps: distance of the two values; None where it has no meaning.
        wrong, count: how many elements of the operand differ, of how many.
        tolerance: of the kernel, in epsilons of the type.
        errors: what the devices said, "" where they said nothing.
    """

    kind: str
    submission: int
    program: str
    command: int
    devices: tuple[str, str]
    name: str = ""
    types: tuple[str, ...] = ()
    op: str = ""
    node: str = ""
    source: str = ""
    mark: str = ""
    operand: str = ""
    element: tuple[int, ...] = ()
    values: tuple[Number, Number] | None = None
    expected: Number | None = None
    at_fault: tuple[str, ...] = ()
    absolute: float | None = None
    relative: float | None = None
    ulps: int | None = None
    wrong: int = 0
    count: int = 0
    tolerance: float = 0.0
    errors: tuple[str, str] = ("", "")

    def as_dict(self) -> dict[str, Any]:
        """Returns the difference as data fit for JSON, which has no NaN and no infinity: they are text."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return "\n".join([self._where(), f"  {KINDS[self.kind]}", *(f"  {line}" for line in self._what())])

    def _where(self) -> str:
        types = f"<{', '.join(self.types)}>" if self.types else ""
        parts = [f"submission {self.submission}, command {self.command}: {self.name}{types}"]
        parts += [f"op {self.op}"] if self.op else []
        parts += [f"node {self.node}"] if self.node else []
        parts += [f"mark {self.mark!r}"] if self.mark else []
        parts += [self.source] if self.source else []
        return ", ".join(parts)

    def _what(self) -> list[str]:
        lines = [f"{device}: {error}" for device, error in zip(self.devices, self.errors, strict=True) if error]
        if self.kind == "stray":
            lines.append(f"byte {self.element[0]} of slot {self.operand}")
        if self.values is not None:
            at = f"[{', '.join(map(str, self.element))}]"
            pairs = ", ".join(f"{d} {_text(v)}" for d, v in zip(self.devices, self.values, strict=True))
            exact = "" if self.expected is None else f", exactly {_text(self.expected)}"
            lines.append(f"{self.operand}{at}: {pairs}{exact}")
            lines += self._distance()
        if self.at_fault:
            lines.append(f"wrong: {' and '.join(self.at_fault)}")
        return lines

    def _distance(self) -> list[str]:
        within = f", by more than {self.tolerance:g} epsilons" if self.tolerance and self.kind == "value" else ""
        lines = [f"{self.wrong} of {self.count} elements{within}"]
        if self.absolute is not None and self.relative is not None:
            steps = "" if self.ulps is None else f", {self.ulps} ulp"
            lines.append(f"absolute {self.absolute:.6g}, relative {self.relative:.6g}{steps}")
        return lines


@dataclass(slots=True)
class ComparisonReport:
    """How a comparison went.

    Attributes:
        devices: names of the two.
        complete: whether the captured run had ended.
        submissions, commands: how many were compared; commands that do nothing are not counted.
        equal: commands whose results are the same bit by bit.
        close: commands whose results differ within their kernel's tolerance.
        failed: commands that failed on both devices alike.
        launches: programs that were run to find that out, on each device.
        differences: wrong commands, in order.
    """

    devices: tuple[str, str]
    complete: bool
    submissions: int = 0
    commands: int = 0
    equal: int = 0
    close: int = 0
    failed: int = 0
    launches: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the devices agree."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data fit for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "differences"}
        return {"ok": self.ok, **plain, "differences": [one.as_dict() for one in self.differences]}


def _text(value: Number) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
