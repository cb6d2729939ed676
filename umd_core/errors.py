"""Every exception of umd. Each carries its facts as attributes and a status code.

The status codes are part of every protocol that umd speaks and are never renumbered.
An adapter sends `status`, `str(error)` and `error.facts()`, and rebuilds the same class with `from_facts`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self


class Status(enum.IntEnum):
    """Outcome of a request. 0 is success; the numbers never change."""

    DONE = 0
    INTERNAL = 1
    UNKNOWN_OP = 2
    INPUT_COUNT = 3
    SHAPE = 4
    DTYPE = 5
    ATTRIBUTE = 6
    UNSUPPORTED = 7
    LIMIT = 8
    BAD_BYTES = 9
    STALE_HANDLE = 10
    OUT_OF_MEMORY = 11
    CANCELLED = 12
    INDEX_OUT_OF_RANGE = 13
    POISONED = 14
    DEVICE_LOST = 15
    QUOTA = 16
    NOT_AUTHORISED = 17


class UmdError(Exception):
    """Base of every error that umd raises on purpose.

    Attributes other than `args` are the error's facts: plain numbers, strings, lists and tuples.
    """

    status: Status = Status.INTERNAL

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def facts(self) -> dict[str, Any]:
        """Returns the error's facts by name, fit for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}

    @staticmethod
    def from_facts(status: int, message: str, facts: Mapping[str, Any]) -> UmdError:
        """Returns the error that another process described, as the class that belongs to its status."""
        cls = _BY_STATUS.get(status, UmdError)
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.__dict__.update(facts)
        return error

    def at(self, **facts: Any) -> Self:
        """Returns this error with more facts (the node or request where it happened)."""
        for name, value in facts.items():
            self.__dict__.setdefault(name, value)
        return self


class InternalError(UmdError):
    """A fault of umd itself: please report it."""

    status = Status.INTERNAL


class UnknownOpError(UmdError):
    """The op is not in the op table. Facts: `op`, `nearest` (names like it)."""

    status = Status.UNKNOWN_OP
    op: str
    nearest: Sequence[str]

    def __init__(self, op: str, nearest: Sequence[str] = ()) -> None:
        hint = f"; did you mean {', '.join(nearest)}?" if nearest else "; `umd ops` lists them"
        super().__init__(f"op {op!r} is not registered{hint}", op=op, nearest=tuple(nearest))


class InputCountError(UmdError):
    """Wrong number of inputs or outputs. Facts: `op`, `got`, `least`, `most`."""

    status = Status.INPUT_COUNT
    op: str
    got: int
    least: int
    most: int

    def __init__(self, op: str, got: int, least: int, most: int, what: str = "inputs") -> None:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        super().__init__(f"{op} takes {wanted} {what}, got {got}", op=op, got=got, least=least, most=most)


class UndefinedValueError(InputCountError):
    """A graph uses a value that nothing before defines. Facts: `op`, `value`."""

    def __init__(self, op: str, value: str) -> None:
        UmdError.__init__(
            self,
            f"{op} uses value {value!r}, which no input, constant or earlier node defines",
            op=op,
            value=value,
        )


class ShapeError(UmdError):
    """Shapes do not fit. Facts: `op`, `input` (its name), `shapes`."""

    status = Status.SHAPE
    op: str
    input: str
    shapes: Sequence[Sequence[int]]

    def __init__(self, op: str, detail: str, *, input: str = "", shapes: Sequence[Sequence[int]] = ()) -> None:
        where = f"{op} input {input!r}" if input else op
        super().__init__(f"{where}: {detail}", op=op, input=input, shapes=[list(s) for s in shapes])


class BindingError(ShapeError):
    """A binding does not fit its slot. Facts: `slot`, `rule` (range, length, alignment, alias, overlap)."""

    slot: int
    rule: str

    def __init__(self, slot: int, rule: str, detail: str) -> None:
        super().__init__("submission", detail, input=f"binding {slot}")
        self.slot, self.rule = slot, rule


class DTypeError(UmdError):
    """An element type is unknown or does not fit. Facts: `op`, `input`, `got`, `allowed`."""

    status = Status.DTYPE
    op: str
    input: str
    got: str
    allowed: Sequence[str]

    def __init__(self, op: str, detail: str, *, input: str = "", got: str = "", allowed: Sequence[str] = ()) -> None:
        where = f"{op} input {input!r}" if input else op
        one_of = f"; one of {', '.join(allowed)} would be right" if allowed else ""
        super().__init__(f"{where}: {detail}{one_of}", op=op, input=input, got=got, allowed=tuple(allowed))


class AttributeValueError(UmdError):
    """An attribute is unknown, missing or ill-typed. Facts: `op`, `attribute`, `value`, `wanted`."""

    status = Status.ATTRIBUTE
    op: str
    attribute: str
    value: str
    wanted: str

    def __init__(self, op: str, attribute: str, detail: str, *, value: object = None, wanted: str = "") -> None:
        would = f"; {wanted} would be right" if wanted else ""
        super().__init__(
            f"{op} attribute {attribute!r}: {detail}{would}",
            op=op,
            attribute=attribute,
            value=repr(value),
            wanted=wanted,
        )


class UnsupportedError(UmdError):
    """The device, or umd, cannot do this. Facts: `op`, `kernel`, `types`, `device`, `reason`."""

    status = Status.UNSUPPORTED
    op: str
    kernel: str
    types: Sequence[str]
    device: str
    reason: str

    def __init__(
        self, reason: str, *, op: str = "", kernel: str = "", types: Sequence[str] = (), device: str = ""
    ) -> None:
        what = f"{kernel}<{', '.join(types)}>" if kernel else ""
        where = " ".join(part for part in (op and f"op {op}:", what, device and f"on {device}:") if part)
        super().__init__(
            f"{where} {reason}".strip(), op=op, kernel=kernel, types=tuple(types), device=device, reason=reason
        )


class LimitError(UmdError):
    """A limit or the range of a number is exceeded. Facts: `what`, `value`, `limit`."""

    status = Status.LIMIT
    what: str
    value: int
    limit: int

    def __init__(self, what: str, value: int, limit: int, *, op: str = "") -> None:
        where = f"{op}: " if op else ""
        super().__init__(f"{where}{what} is {value}, the limit is {limit}", what=what, value=value, limit=limit, op=op)


class DecodeError(UmdError):
    """Bytes that are not a command buffer. Facts: `rule` (its id), `offset` (bytes), `section`, `index`."""

    status = Status.BAD_BYTES
    rule: str
    offset: int
    section: str
    index: int

    def __init__(
        self, rule: str, detail: str, *, offset: int = 0, section: str = "HEADER", index: int = 0, **facts: Any
    ) -> None:
        super().__init__(
            f"rule {rule}: {detail} (byte {offset}, {section}[{index}])",
            rule=rule,
            detail=detail,
            offset=offset,
            section=section,
            index=index,
            **facts,
        )


class CaptureError(UmdError):
    """A folder that is not a capture, or a damaged one. Facts: `file`, `rule`, `detail`, `line` (1-based, 0: none)."""

    status = Status.BAD_BYTES
    file: str
    rule: str
    detail: str
    line: int

    def __init__(self, file: str, rule: str, detail: str, *, line: int = 0) -> None:
        where = f"{file} line {line}" if line else file
        super().__init__(f"{where}: rule {rule}: {detail}", file=file, rule=rule, detail=detail, line=line)


class StaleHandleError(UmdError):
    """A handle, buffer or program that no longer (or never) existed. Facts: `what`, `handle`."""

    status = Status.STALE_HANDLE
    what: str
    handle: str

    def __init__(self, what: str, handle: object, detail: str = "is not alive") -> None:
        super().__init__(f"{what} {handle} {detail}", what=what, handle=str(handle))


class OutOfMemoryError(UmdError):
    """No room on the device. Facts in bytes: `asked`, `used`, `capacity`, `largest_free`."""

    status = Status.OUT_OF_MEMORY
    asked: int
    used: int
    capacity: int
    largest_free: int
    device: str

    def __init__(self, asked: int, used: int, capacity: int, largest_free: int, *, device: str = "") -> None:
        super().__init__(
            f"{device or 'device'} is out of memory: {asked} bytes asked, {used} of {capacity} in use, "
            f"largest free block {largest_free}",
            asked=asked,
            used=used,
            capacity=capacity,
            largest_free=largest_free,
            device=device,
        )


class CancelledError(UmdError):
    """The work was cancelled or ran past its deadline. Facts: `what`."""

    status = Status.CANCELLED
    what: str

    def __init__(self, what: str) -> None:
        super().__init__(what, what=what)


_SIGN = 1 << 63
"""An int64 whose sign bit is cleared is this much more, if it was negative."""


class IndexRangeError(UmdError):
    """A data-dependent index left its range. Facts: `kernel`, `command`, `value`, `extent`.

    Kernels count negative indices from the end. A program that wants them refused clears their sign bit, which makes
    them larger than any extent; `value` has the sign again.
    """

    status = Status.INDEX_OUT_OF_RANGE
    kernel: str
    command: int
    value: int
    extent: int

    def __init__(self, kernel: str, command: int, value: int, extent: int) -> None:
        value = value - _SIGN if value >= _SIGN // 2 else value
        least = 0 if -extent <= value < 0 else -extent
        super().__init__(
            f"{kernel} (command {command}): index {value} is outside [{least}, {extent})",
            kernel=kernel,
            command=command,
            value=value,
            extent=extent,
        )


class PoisonedError(UmdError):
    """Depends on something that failed before. Facts: `root` (the first failure's message), `root_status`."""

    status = Status.POISONED
    what: str
    root: str
    root_status: int

    def __init__(self, what: str, root: BaseException) -> None:
        root_message = getattr(root, "root", None) or str(root)
        root_status = getattr(root, "root_status", None) or int(getattr(root, "status", Status.INTERNAL))
        super().__init__(
            f"{what} depends on work that failed: {root_message}", what=what, root=root_message, root_status=root_status
        )


class DeviceLostError(UmdError):
    """The device or the server behind it is gone. Facts: `device`, `reason`."""

    status = Status.DEVICE_LOST
    device: str
    reason: str

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"{device} is lost: {reason}", device=device, reason=reason)


class ConfigError(UmdError):
    """Settings that cannot be used. Facts: `file` ("" for flags), `problems` (a line each)."""

    status = Status.ATTRIBUTE
    file: str
    problems: Sequence[str]

    def __init__(self, file: str, problems: Sequence[str]) -> None:
        where = f"{file}: " if file else ""
        super().__init__(where + "; ".join(problems), file=file, problems=tuple(problems))


class QuotaError(UmdError):
    """An identity's quota is used up. Facts: `what`, `limit`, `retry_after_seconds`."""

    status = Status.QUOTA

    def __init__(self, what: str, limit: int, retry_after_seconds: float) -> None:
        super().__init__(
            f"quota on {what} reached ({limit}); retry after {retry_after_seconds:g} s",
            what=what,
            limit=limit,
            retry_after_seconds=retry_after_seconds,
        )


class NotAuthorisedError(UmdError):
    """The caller may not do this. Facts: `what`."""

    status = Status.NOT_AUTHORISED
    what: str

    def __init__(self, what: str) -> None:
        super().__init__(f"not authorised: {what}", what=what)


_BY_STATUS: dict[int, type[UmdError]] = {
    int(cls.status): cls
    for cls in (
        InternalError, UnknownOpError, InputCountError, ShapeError, DTypeError, AttributeValueError,
        UnsupportedError, LimitError, DecodeError, StaleHandleError, OutOfMemoryError, CancelledError,
        IndexRangeError, PoisonedError, DeviceLostError, QuotaError, NotAuthorisedError,
    )
}  # fmt: skip
