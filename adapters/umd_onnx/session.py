"""Running ONNX models: a session shaped like onnxruntime's."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.device.tensor import Tensor
from umd_core.errors import AttributeValueError, DTypeError, OutOfMemoryError
from umd_core.ir import Array, TensorDesc
from umd_core.passes import DEFAULT, optimise
from umd_core.registry import default_device, open_device
from umd_core.translate import translator
from umd_onnx.arguments import with_arguments
from umd_onnx.feeds import Extent, Feeds, NodeArg, argument
from umd_onnx.host import evaluated
from umd_onnx.importer import Imported, Importer
from umd_onnx.loading import Source, load_parts
from umd_onnx.resident import Resident, is_small
from umd_onnx.values import NarrowResult, ValueNeededError

PROGRAMS = 32
"""Bindings whose programs are kept."""
RESIDENT = 8
"""Programs with small arguments that stay loaded, with their arenas."""
BOUND_BYTES = 1 << 16
"""Bytes of an input up to which its values may become part of a program."""


@dataclass(slots=True)
class _Program:
    imported: Imported
    buffer: CommandBuffer | None
    is_small: bool = False
    resident: Resident | None = None


class InferenceSession:
    """A model on a device; a context manager.

    Example:
        >>> session = umd_onnx.load("model.onnx", device="sim:0")
        >>> (scores,) = session.run(None, {"x": x})
    """

    def __init__(
        self,
        source: Source,
        device: str | Device = "",
        *,
        dims: Mapping[str, int] | None = None,
        shapes: Mapping[str, Sequence[Extent]] | None = None,
        seed: int | None = None,
        passes: Collection[str] = DEFAULT,
    ) -> None:
        """Loads a model.

        Args:
            source: path, bytes or model.
            device: by name or opened; by default the available one of highest priority.
            dims: sizes of extents that the model names and leaves open.
            shapes: shapes of inputs, by name, in place of those that the model states. Some exporters state the one
                that they traced; where the ops allow it, such a model takes others too.
            seed: where random ops without a seed of their own start from; by default each session gives other numbers.
            passes: clean-ups of the graph by name (`umd_core.passes`), all by default, () for none.

        Raises:
            OSError, DecodeError, LimitError, UnsupportedError: see `load_model`.
            AttributeValueError: `shapes` names no input.
        """
        self._loaded = load_parts(source)
        self.model = self._loaded.model
        self._feeds = Feeds(self.model.graph, dims or {}, shapes)
        self._outputs = [output.name for output in self.model.graph.output]
        self._owned = isinstance(device, str)
        self.device = open_device(device or default_device()) if isinstance(device, str) else device
        self._passes = passes
        self._bound: set[str] = set()
        self._programs: OrderedDict[Any, _Program] = OrderedDict()
        self._weights: dict[str, Tensor] = {}
        self._residents: deque[_Program] = deque()
        self._translator = translator(self.device.caps())
        self._random = np.random.default_rng(secrets.randbits(128) if seed is None else seed)

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the weights, and the device when the session opened it."""
        self._drop_residents(0)
        self._programs.clear()
        self._weights.clear()
        if self._owned:
            self.device.close()

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that `run` wants."""
        return self._feeds.arguments()

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs."""
        return [argument(info) for info in self.model.graph.output]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Returns the outputs that are named, all of them for None; a sequence is a list.

        Raises:
            AttributeValueError: an input is missing or unknown, or an output is unknown.
            DTypeError, ShapeError: an input is not what the model takes.
            UnsupportedError: the model has ops that umd lacks, all of them named.
            OutOfMemoryError: the device has no room for it.
            UmdError: a node is wrong, or the device could not run it.
        """
        wanted = self._wanted(output_names)
        feeds = self._feeds.checked(input_feed)
        program = self._program(feeds)
        results: list[Array] = []
        if program.buffer is not None:
            results = self._run(program, program.buffer, [feeds[name] for name in program.imported.inputs])
        return [_resolved(program.imported.outputs[index], results) for index in wanted]

    def _run(self, program: _Program, buffer: CommandBuffer, given: list[Any]) -> list[Array]:
        arguments = given + self._uploaded(program.imported.weights)
        if program.imported.seeded:
            arguments.append(self._random.integers(-(2**63), 2**63 - 1, (), np.int64))
        try:
            return self._results(program, buffer, arguments)
        except OutOfMemoryError:
            if not self._residents:
                raise
            self._drop_residents(0)  # the device cannot free the arenas of programs that are held here
            return self._results(program, buffer, arguments)

    def _results(self, program: _Program, buffer: CommandBuffer, arguments: list[Any]) -> list[Array]:
        if not program.is_small:
            return [tensor.numpy() for tensor in self.device.run(buffer, arguments)]
        if program.resident is None:
            self._drop_residents(RESIDENT - 1)
            program.resident = Resident(self.device, buffer, arguments)
            self._residents.append(program)
        return program.resident.run(arguments)

    def _drop_residents(self, kept: int) -> None:
        """Lets go of loaded programs, the oldest first, until so many are kept."""
        while len(self._residents) > kept:
            self._residents.popleft().resident = None

    def prepare(self, input_feed: Mapping[str, Any]) -> CommandBuffer | None:
        """Returns the program for inputs of these shapes, without running it; None when nothing is left to run."""
        return self._program(self._feeds.checked(input_feed)).buffer

    def upload(self, input_feed: Mapping[str, Any]) -> None:
        """Puts the weights of the program for inputs of these shapes on the device. The first run does it as well.

        Raises:
            OutOfMemoryError: the device has no room left.
        """
        self._uploaded(self._program(self._feeds.checked(input_feed)).imported.weights)

    def imported(self, input_feed: Mapping[str, Any]) -> Imported:
        """Returns what the model became for inputs of these shapes."""
        return self._program(self._feeds.checked(input_feed)).imported

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        known = self._outputs
        for name in names or ():
            if name not in known:
                raise AttributeValueError("run", name, "is not an output", wanted=f"outputs {', '.join(known)}")
        return [known.index(name) for name in names] if names else list(range(len(known)))

    # programs

    def _program(self, feeds: Mapping[str, Any]) -> _Program:
        """Returns the program for a binding; inputs whose values decide shapes are part of the binding."""
        while True:
            key = tuple(_binding(value, self._is_bound(name, value)) for name, value in feeds.items())
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                return program
            try:
                program = self._import(feeds)
            except ValueNeededError as error:
                self._bind(error, feeds)
                continue
            self._programs[key] = program
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
            return program

    def _bind(self, error: ValueNeededError, feeds: Mapping[str, Any]) -> None:
        """Makes the values of inputs part of the binding from now on.

        Raises:
            ValueNeededError: they are already, or are too large.
        """
        large = sorted(name for name in error.origins if feeds[name].nbytes > BOUND_BYTES)
        if large:
            sizes = ", ".join(f"{name} has {feeds[name].nbytes} bytes" for name in large)
            raise ValueNeededError(error.what, error.op, error.origins, f"{sizes}, the limit is {BOUND_BYTES}")
        if error.origins <= self._bound:
            raise error
        self._bound |= error.origins

    def _is_bound(self, name: str, value: Any) -> bool:
        return name in self._bound and getattr(value, "nbytes", 0) <= BOUND_BYTES

    def _import(self, feeds: Mapping[str, Any]) -> _Program:
        shapes = {n: TensorDesc(a.dtype, a.shape) for n, a in feeds.items() if _is_tensor(a)}
        known = {n: a for n, a in feeds.items() if n not in shapes or self._is_bound(n, a)}
        imported = Importer(self._loaded, shapes, known).run()
        if not imported.graph.outputs:
            return _Program(imported, None)
        if self._passes:
            imported.graph = optimise(imported.graph, self._passes, evaluate=evaluated).graph
        imported = with_arguments(imported)
        buffer = self._translator.graph(imported.graph)
        self._check_memory(buffer)
        kept = range(len(imported.inputs), len(imported.inputs) + len(imported.weights))
        given = [index for index in range(len(buffer.inputs)) if index not in kept]
        return _Program(imported, buffer, is_small(self.device, buffer, given))

    def _check_memory(self, buffer: CommandBuffer) -> None:
        """Checks that weights, inputs, outputs and the arena fit, before anything is uploaded.

        Raises:
            OutOfMemoryError: they do not.
        """
        needed = buffer.arena_size + sum(desc.byte_size for desc in (*buffer.inputs, *buffer.outputs))
        capacity = self.device.caps().memory
        if needed > capacity:
            raise OutOfMemoryError(needed, 0, capacity, capacity, device=self.device.name)

    def _uploaded(self, weights: dict[str, Array | None]) -> list[Tensor]:
        """Returns weights on the device; those that were not there yet are freed on the host."""
        for key, array in weights.items():
            if key not in self._weights:
                self._weights[key] = self.device.tensor(array)
            weights[key] = None
        return [self._weights[key] for key in weights]


def load(
    source: Source,
    device: str | Device = "",
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[Extent]] | None = None,
    seed: int | None = None,
    passes: Collection[str] = DEFAULT,
) -> InferenceSession:
    """Returns a session for a model; see `InferenceSession`."""
    return InferenceSession(source, device, dims=dims, shapes=shapes, seed=seed, passes=passes)


def _is_tensor(value: Any) -> bool:
    """Returns whether an input is one that the program can take; others have to be known."""
    if not isinstance(value, np.ndarray):
        return False
    try:
        TensorDesc(value.dtype, value.shape)
    except DTypeError:
        return False
    return True


def _binding(value: Any, with_value: bool) -> Any:
    """Returns what makes two values of an input the same binding."""
    if isinstance(value, (list, tuple)):
        return tuple(_binding(item, True) for item in value)
    if not isinstance(value, np.ndarray):
        return value
    content = repr(value.tolist()) if value.dtype == object else value.tobytes() if with_value else b""
    return (value.dtype, value.shape, content)


def _resolved(output: Any, results: Sequence[Array]) -> Any:
    if isinstance(output, int):
        return results[output]
    if isinstance(output, NarrowResult):
        return results[output.number].astype(output.dtype)
    if isinstance(output, list):
        return [_resolved(item, results) for item in output]
    return output
