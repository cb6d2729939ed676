"""What an op is: its signature, attribute schema, shape rule, cost, and how it becomes kernel launches.

An op is a value, `OpTemplate`. Adding one that existing kernels can serve touches one file in `umd_core/ops/`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from umd_core.attributes import Attribute, coerce
from umd_core.dtypes import BY_NAME, DType
from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import AttributeValueError, DTypeError, InputCountError, ShapeError
from umd_core.ir import Array, TensorDesc, row_major

if TYPE_CHECKING:
    from umd_core.recorder import Recorder
    from umd_core.views import View

Shape = tuple[int, ...]
MANY = 1 << 30
"""The number of inputs or outputs that a variadic op may have."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input. `type` is a type variable or a dtype name; a `static` input's value must be known at translation."""

    name: str
    type: str = "T"
    optional: bool = False
    static: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """An output. `type` is a type variable, a dtype name, or "@name": the dtype that attribute `name` holds."""

    name: str
    type: str = "T"
    optional: bool = False
    variadic: bool = False


class Call:
    """One use of an op: descriptions of its inputs, values of its static ones, complete attributes.

    Attributes:
        inputs: TensorDesc per input, None where an optional one is left out.
        values: NumPy array per input whose value is known, else None.
        attributes: every attribute of the schema, defaults filled in.
        wanted: per output, whether it is used.
        types: dtype bound to each type variable.
        outputs: TensorDesc per output, once inferred.
    """

    __slots__ = ("attributes", "inputs", "outputs", "template", "types", "values", "wanted")

    template: OpTemplate
    inputs: tuple[TensorDesc | None, ...]
    values: tuple[Array | None, ...]
    wanted: tuple[bool, ...]

    def __init__(
        self,
        template: OpTemplate,
        inputs: tuple[TensorDesc | None, ...],
        values: tuple[Array | None, ...],
        attributes: dict[str, Any],
        wanted: tuple[bool, ...],
    ) -> None:
        self.template, self.inputs, self.values, self.wanted = template, inputs, values, wanted
        self.attributes: dict[str, Any] = attributes
        self.types: dict[str, DType] = {}
        self.outputs: tuple[TensorDesc, ...] = ()

    @property
    def op(self) -> str:
        """Name of the op."""
        return self.template.name

    def attr(self, name: str) -> Any:
        """Returns an attribute's value."""
        return self.attributes[name]

    def desc(self, index: int) -> TensorDesc:
        """Returns the description of an input that is there."""
        desc = self.inputs[index] if index < len(self.inputs) else None
        if desc is None:
            name = self.template.input_spec(index).name
            raise InputCountError(self.op, len(self.inputs), index + 1, index + 1, f"inputs ({name} is missing)")
        return desc

    def has(self, index: int) -> bool:
        """Returns whether an optional input was given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Returns whether an output is used."""
        return index < len(self.wanted) and self.wanted[index]

    def static(self, index: int) -> Array | None:
        """Returns the value of a static input, None when it was left out."""
        return self.values[index] if index < len(self.values) else None

    def ints(self, index: int) -> tuple[int, ...] | None:
        """Returns a static integer input as a tuple, None when it was left out."""
        value = self.static(index)
        return None if value is None else tuple(int(v) for v in value.reshape(-1))

    def error(self, detail: str, *, input: str = "") -> ShapeError:
        """Returns a ShapeError about this call, with every input shape."""
        return ShapeError(self.op, detail, input=input, shapes=[d.shape for d in self.inputs if d is not None])

    def bad_attribute(self, name: str, detail: str, wanted: str = "") -> AttributeValueError:
        """Returns an AttributeValueError about this call."""
        return AttributeValueError(self.op, name, detail, value=self.attributes.get(name), wanted=wanted)


ShapeRule = Callable[[Call], Sequence[Sequence[int]]]
Emit = Callable[["Recorder", Call, "tuple[View, ...]"], "Sequence[View | None] | View"]
"""Records the launches of a call and returns a view per output.

The views are those of the inputs in order; a left-out optional input is the falsy `recorder.ABSENT`.
"""


@dataclass(frozen=True, eq=False)
class OpTemplate:
    """An op of the op table.

    Attributes:
        name: ONNX's name, or "umd.Name" for what ONNX lacks.
        inputs, results, attributes: its signature.
        types: for each type variable, the dtypes it may be.
        shape: returns the output shapes.
        emit: records its kernel launches.
        flops: returns the floating-point operations of a call; elements of the first output when not given.
        checks: whether it fails where its input is not as it should be, and so runs even if nothing reads its outputs.
        doc: one line; the semantics of ONNX names are ONNX's, at `since` (opset) as of opset 28.
        source: specification or paper.
    """

    name: str
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    shape: ShapeRule
    emit: Emit
    types: Mapping[str, tuple[DType, ...]] = field(default_factory=dict)
    attributes: tuple[Attribute, ...] = ()
    flops: Callable[[Call], int] | None = None
    checks: bool = False
    doc: str = ""
    source: str = ""

    @property
    def domain(self) -> str:
        """ONNX's "ai.onnx", or "umd" for what ONNX lacks."""
        return "umd" if self.name.startswith("umd.") else "ai.onnx"

    @functools.cached_property
    def input_counts(self) -> tuple[int, int]:
        """The least and the largest number of inputs."""
        least = sum(not i.optional and not i.variadic for i in self.inputs)
        if any(i.variadic for i in self.inputs):
            return max(least, 1), MANY
        return least, len(self.inputs)

    @functools.cached_property
    def _schema(self) -> dict[str, Attribute]:
        return {a.name: a for a in self.attributes}

    @functools.cached_property
    def has_static(self) -> bool:
        """Whether some input's value must be known at translation."""
        return any(i.static for i in self.inputs)

    def statics(self, count: int) -> tuple[bool, ...]:
        """Returns for each of `count` inputs whether its value must be known at translation."""
        found = self._statics.get(count)
        if found is None:
            found = self._statics[count] = tuple([self.input_spec(index).static for index in range(count)])
        return found

    @functools.cached_property
    def _statics(self) -> dict[int, tuple[bool, ...]]:
        return {}

    def input_spec(self, index: int) -> Input:
        """Returns the signature's entry for an input; the last one stands for all that follow."""
        if not self.inputs:
            raise InputCountError(self.name, index + 1, 0, 0)
        return self.inputs[index] if index < len(self.inputs) else self.inputs[-1]

    def call(
        self,
        inputs: Sequence[TensorDesc | None],
        attributes: Mapping[str, Any] | None = None,
        values: Sequence[Array | None] = (),
        wanted: Sequence[bool] = (True,),
    ) -> Call:
        """Returns the checked call with its outputs inferred.

        Raises:
            InputCountError, DTypeError, ShapeError, AttributeValueError: what does not fit the signature.
        """
        known = tuple(values) + (None,) * (len(inputs) - len(values))
        call = Call(self, tuple(inputs), known, self._complete(attributes or {}), tuple(wanted))
        self._check_inputs(call)
        shapes = self.shape(call)
        results = self.results
        if len(shapes) > len(results):
            results = results + (results[-1],) * (len(shapes) - len(results))
        call.outputs = tuple(
            [row_major(self._dtype(call, r.type), tuple(shape)) for r, shape in zip(results, shapes, strict=False)]
        )
        return call

    def cost(self, call: Call) -> tuple[int, int]:
        """Returns (floating-point operations, bytes read and written once) of a call."""
        moved = [d for d in (*call.inputs, *call.outputs) if d is not None]
        flops = self.flops(call) if self.flops else call.outputs[0].element_count if call.outputs else 0
        return flops, sum(d.element_count * d.dtype.size for d in moved)

    def _complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if not self.attributes and not given:
            return {}
        schema = self._schema
        for name, value in given.items():
            if name not in schema:
                wanted = f"one of: {', '.join(schema) or 'none'}"
                raise AttributeValueError(self.name, name, "unknown attribute", value=value, wanted=wanted)
        complete = {}
        for name, attribute in schema.items():
            value = given.get(name)
            if value is None:
                if attribute.required:
                    raise AttributeValueError(self.name, name, "is missing", wanted=f"a value of kind {attribute.kind}")
                complete[name] = attribute.default
                continue
            complete[name] = coerce(self.name, attribute, value)
        return complete

    def _check_inputs(self, call: Call) -> None:
        least, most = self.input_counts
        count = len(call.inputs)
        if not least <= count <= most:
            raise InputCountError(self.name, count, least, most)
        for index, desc in enumerate(call.inputs):
            spec = self.input_spec(index)
            if desc is None:
                if not (spec.optional or spec.variadic):
                    raise InputCountError(self.name, count, least, most, f"inputs ({spec.name} is missing)")
                continue
            self._bind_type(call, spec, desc.dtype)
            if spec.static and call.values[index] is None:
                raise AttributeValueError(
                    self.name, spec.name, "must be known at translation", wanted="a constant, or an attribute"
                )

    def _bind_type(self, call: Call, spec: Input, dtype: DType) -> None:
        allowed = self.types.get(spec.type)
        if allowed is None:
            if dtype is not BY_NAME[spec.type]:
                raise DTypeError(self.name, f"is {dtype}", input=spec.name, got=dtype.name, allowed=(spec.type,))
            return
        bound = call.types.setdefault(spec.type, dtype)
        if dtype not in allowed:
            names = tuple(d.name for d in allowed)
            raise DTypeError(self.name, f"is {dtype}", input=spec.name, got=dtype.name, allowed=names)
        if bound is not dtype:
            detail = f"is {dtype}, but the inputs before it are {bound}"
            raise DTypeError(self.name, detail, input=spec.name, got=dtype.name, allowed=(bound.name,))

    def _dtype(self, call: Call, type_name: str) -> DType:
        if type_name in call.types:
            return call.types[type_name]
        if type_name.startswith("@"):
            return to_dtype(call.attributes[type_name[1:]])
        return BY_NAME[type_name]


# Shape rules that many ops share.


def broadcast(*shapes: Sequence[int]) -> Shape | None:
    """Returns the shape that the shapes broadcast to by ONNX's (NumPy's) rule, None when they do not."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent == 1 or extent == result[axis]:
                continue
            if result[axis] != 1:
                return None
            result[axis] = extent
    return tuple(result)


def broadcast_shape(call: Call) -> tuple[Shape]:
    """Shape rule: all inputs broadcast together."""
    shapes = [d.shape for d in call.inputs if d is not None]
    result = broadcast(*shapes)
    if result is None:
        raise call.error(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
    return (result,)


def matrix_product(call: Call, left: int, right: int) -> Shape:
    """Returns the shape of a product of two inputs as NumPy's matmul defines it: leading axes broadcast.

    Raises:
        ShapeError: they do not fit.
    """
    a, b = call.desc(left).shape, call.desc(right).shape
    first, second = (call.template.input_spec(index).name for index in (left, right))
    for name, shape in ((first, a), (second, b)):
        if not shape:
            raise call.error("is 0-d; one axis or more would be right", input=name)
    depth = b[-2:][0]
    if a[-1] != depth:
        columns = f"input {first!r} has {a[-1]} columns (shapes {list(a)} and {list(b)})"
        raise call.error(f"has {depth} rows, but {columns}", input=second)
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        detail = f"leading axes {list(b[:-2])} do not broadcast with input {first!r}, {list(a[:-2])}"
        raise call.error(detail, input=second)
    return batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def same_shape(call: Call) -> tuple[Shape]:
    """Shape rule: the first output is shaped like the first input."""
    return (call.desc(0).shape,)


def normal_axis(call: Call, axis: int, rank: int, name: str = "axis") -> int:
    """Returns an axis counted from the front.

    Raises:
        AttributeValueError: it is outside [-rank, rank).
    """
    if not -rank <= axis < max(rank, 1):
        raise AttributeValueError(
            call.op, name, f"axis {axis} is outside rank {rank}", value=axis, wanted=f"-{rank} to {rank - 1}"
        )
    return axis % rank if rank else 0


def normal_axes(call: Call, axes: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """Returns distinct axes counted from the front, in the order given."""
    result = tuple(normal_axis(call, axis, rank, name) for axis in axes)
    if len(set(result)) != len(result):
        detail = f"axis named twice in {list(axes)}"
        raise AttributeValueError(call.op, name, detail, value=axes, wanted="distinct axes")
    return result


def element_count(shape: Sequence[int]) -> int:
    """Returns the number of elements of a shape."""
    return math.prod(shape)
