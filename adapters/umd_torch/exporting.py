"""`umd_torch.export(model, args, path)`: a model as one file that `umd run` executes without torch."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from umd_core.errors import AttributeValueError, LimitError, UmdError, UnsupportedError
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import translate
from umd_model import Argument, Model, Size, save
from umd_model.merging import merge
from umd_model.sizes import find_sizes
from umd_torch.graphs import Lowered, lower, to_numpy
from umd_torch.openings import MOST, Axes, Opening, Ranges, openings
from umd_torch.symbols import Bound
from umd_torch.torch_private import DEPENDS_ON_DATA, UserError, get_decompositions
from umd_torch.tracing import KEPT_OVERLOADS, decompositions, tracing

Openings = Mapping[str, Mapping[int, Opening]]
aten = torch.ops.aten
_CHECKS = (
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)
"""What tracing adds to be told when an assumption breaks; the shapes of a file's inputs are checked before it runs."""
_RESAMPLING = (
    aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d, aten.upsample_linear1d,
    aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d,
)  # fmt: skip
"""What torch.compile takes apart by itself and torch.export leaves whole."""
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def export(
    model: torch.nn.Module,
    args: Sequence[Any],
    path: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Axes | None = None,
    ranges: Ranges | None = None,
) -> Model:
    """Writes a model to a file, and returns what was written.

    Args:
        model: as it is to be run; `model.eval()` turns dropout off and lets norms use what they have learned.
        args: example inputs; their shapes are the stored ones.
        path: of the file.
        kwargs: more example inputs, by name.
        dynamic: axes that stay open, by input: {"x": {0: "batch"}}, or {0: torch.export.Dim("batch", min=2, max=64)}.
            Axes of one name have one size. Dim.DYNAMIC is a size of its own, "x_0"; Dim.AUTO as well, where torch does
            not fix it.
        ranges: least and most of an open size, by name.

    Raises:
        UnsupportedError: an op has no lowering, depends on data, or draws random numbers; or other sizes have another
            graph.
        AttributeValueError: `dynamic` names an input that is not there, or says what is no size; or a range is empty.
    """
    axes = openings(dynamic or {}, ranges or {})
    program = _exported(model, tuple(args), dict(kwargs or {}), axes)
    symbols = _symbols(program, axes)
    lowered: list[Lowered] = []

    def graph_for(sizes: tuple[int, ...]) -> Graph:
        bound: Bound = dict(zip(symbols, sizes, strict=True))
        try:
            lowered.append(lower(program.graph_module, bound, open_sizes=bool(symbols)))
        except UmdError as error:
            if not lowered or isinstance(error, LimitError):
                raise
            given = ", ".join(f"{size.name}={n}" for size, n in zip(symbols.values(), sizes, strict=True))
            raise UnsupportedError(f"with {given}: {error}") from error
        return _arranged(lowered[-1], program)

    graph, sizes = merge(*find_sizes(list(symbols.values()), graph_for))
    arguments, weights = _arguments(lowered[0], program)
    raw = bytes(translate(graph))
    names = _output_names(program)
    made = Model(
        graph=graph, arguments=arguments, weights=weights, outputs=names, updates=_updates(program, len(names)),
        sizes=sizes, producer=f"torch {torch.__version__}", programs={hashlib.sha256(raw).hexdigest(): raw},
    )  # fmt: skip
    save(made, path)
    return made


def _exported(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Openings) -> ExportedProgram:
    """Returns torch's own export, taken apart into the ops that have a lowering."""
    shapes = _shapes(model, args, kwargs, axes)
    with tracing(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch copies what it calls deprecated itself
        try:
            found = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
        except UserError as error:
            raise UnsupportedError(f"torch cannot export it: {error}") from error
        except DEPENDS_ON_DATA as error:
            raise UnsupportedError(f"a shape or a branch depends on what a tensor holds: {error}") from error
        table = torch.export.default_decompositions()
        for overload in KEPT_OVERLOADS:
            table.pop(overload, None)
        table.update({**get_decompositions(_RESAMPLING), **decompositions()})
        decomposed: ExportedProgram = found.run_decompositions(table)
    for node in reversed(decomposed.graph.nodes):
        if node.target in _CHECKS and not node.users:
            decomposed.graph.erase_node(node)
    return decomposed


def _shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], axes: Openings) -> Any:
    """Returns torch's form of the open axes, None when there are none."""
    if not axes:
        return None
    import inspect  # noqa: PLC0415  # for open axes only

    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    unknown = set(axes) - set(bound)
    if unknown:
        wanted = f"one of {', '.join(bound)}"
        raise AttributeValueError("export", "dynamic", f"no input {', '.join(sorted(unknown))}", wanted=wanted)
    for name in axes:
        _check_axes(name, bound[name], axes[name])
    return {
        name: {axis: opening.dim for axis, opening in axes[name].items()}
        if name in axes
        else pytree.tree_map(_fixed, value)
        for name, value in bound.items()
    }


def _check_axes(name: str, example: Any, axes: Mapping[int, Opening]) -> None:
    """Checks that the example has the axes, with sizes that are in their ranges."""
    shape = tuple(example.shape) if isinstance(example, torch.Tensor) else None
    for axis, opening in axes.items():
        if shape is None or not 0 <= axis < len(shape):
            detail = f"{name} has no axis {axis}" if shape else f"{name} is no tensor with axes"
            wanted = f"an axis from 0 to {len(shape) - 1}" if shape else "a tensor's axis"
            raise AttributeValueError("export", "dynamic", detail, value=str(axis), wanted=wanted)
        if not opening.least <= shape[axis] <= opening.most:
            detail = f"size {opening.size!r} is {shape[axis]} in the example"
            wanted = f"an example between {opening.least} and {opening.most}"
            raise AttributeValueError("export", "ranges", detail, value=str(shape[axis]), wanted=wanted)


def _fixed(_: Any) -> None:
    return None


def _symbols(program: ExportedProgram, axes: Openings) -> dict[sympy.Symbol, Size]:
    """Returns the open sizes by torch's symbol for them, with the ranges that torch found."""
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    found: dict[sympy.Symbol, Size] = {}
    for name, opened in axes.items():
        for axis, opening in opened.items():
            extent = placeholders[name].meta["val"].shape[axis]
            if not isinstance(extent, torch.SymInt):
                if opening.may_close:
                    continue
                raise UnsupportedError(f"torch fixed size {opening.size!r} (axis {axis} of {name}) to {extent}")
            node = extent.node
            if not node.expr.is_Symbol:  # twice another size, for example
                continue
            limits = program.range_constraints[node.expr]
            most = int(limits.upper) if limits.upper < MOST else MOST
            found.setdefault(node.expr, Size(opening.size, int(node.hint), max(int(limits.lower), 1), most))
    return found


def _arranged(lowered: Lowered, program: ExportedProgram) -> Graph:
    """Returns the graph with row-major inputs and results, the user's results first, then what the model changes."""
    graph = lowered.graph
    if any(argument.draws for argument in lowered.arguments):
        raise UnsupportedError("the model draws random numbers: call model.eval() before it is exported")
    for name, desc in list(graph.inputs.items()):
        graph.inputs[name] = TensorDesc(desc.dtype, desc.shape)
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    values = [output.value for output in graph.outputs]
    graph.outputs.clear()
    for index in _order(program):
        result = lowered.results[index]
        if result.output >= 0:
            graph.output(values[result.output])
        elif result.argument >= 0:
            source = names[result.argument]
            if source not in graph.inputs:
                raise UnsupportedError(f"result {index} is the input {source} itself, which nothing else uses")
            graph.output(graph.add("Identity", [source]))
        else:
            raise UnsupportedError(f"result {index} is {result.value!r}, no tensor")
    return graph


def _order(program: ExportedProgram) -> list[int]:
    """Returns the positions of the user's results, then of the buffers that the model changes."""
    specs = program.graph_signature.output_specs
    results = [i for i, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT]
    changed = [i for i, spec in enumerate(specs) if spec.kind is OutputKind.BUFFER_MUTATION]
    if len(results) + len(changed) != len(specs):
        raise UnsupportedError("the model changes one of its inputs in place")
    return results + changed


def _updates(program: ExportedProgram, results: int) -> tuple[tuple[int, str], ...]:
    specs = [s for s in program.graph_signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION]
    return tuple((results + i, str(spec.target)) for i, spec in enumerate(specs))


def _arguments(
    lowered: Lowered, program: ExportedProgram
) -> tuple[tuple[Argument, ...], dict[str, np.ndarray[Any, Any]]]:
    """Returns the arguments of the graph in order, and the weights among them."""
    specs = program.graph_signature.input_specs
    state = {**program.state_dict, **program.constants}
    weights: dict[str, np.ndarray[Any, Any]] = {}
    arguments: list[Argument] = []
    for value, argument in zip(lowered.graph.inputs, lowered.arguments, strict=True):
        spec = specs[argument.position] if argument.tensor is None else None
        if spec is not None and spec.kind not in _WEIGHTS:
            arguments.append(Argument(value, spec.arg.name, weight=False))
            continue
        name = value if spec is None else str(spec.target)
        tensor = argument.tensor if spec is None else state[name]
        weights[name] = to_numpy(tensor.detach().contiguous())  # type: ignore[union-attr]  # a weight is a tensor
        arguments.append(Argument(value, name, weight=True))
    return tuple(arguments), weights


def _output_names(program: ExportedProgram) -> tuple[str, ...]:
    """Returns the results' names: "output", or where they are in what the model returns."""
    spec = program.call_spec.out_spec
    assert spec is not None  # export fills it
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    names = ["_".join(_part(key) for key in path) for path, _ in paths]
    return tuple(name if name and not name[0].isdigit() else f"output{f'_{name}' if name else ''}" for name in names)


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
