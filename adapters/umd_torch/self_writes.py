"""Writes into tensors some of whose elements share memory, or into parts of them: refused before torch takes them out.

AOTAutograd makes values of in-place ops, and puts the part that a view is back into what it is a view of. Where
elements of that share memory each has a value of its own: which of them stays, or that it is their sum, is chance.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from umd_torch.nodes import source_line
from umd_torch.overlaps import MEETS_ITSELF, lies_twice
from umd_torch.torch_private import OpOverload, schema_of, storage_key

_METADATA = frozenset(
    ("as_strided_", "detach_", "rename_", "requires_grad_", "resize_", "resize_as_", "set_", "share_memory_",
     "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")
)  # fmt: skip
"""What ends in an underscore and writes no element."""
_OPERATORS = frozenset(
    (operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
     operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift)
)  # fmt: skip


_METHODS = frozenset(f"__{operation.__name__}__" for operation in _OPERATORS)


def check_writes(module: fx.GraphModule) -> None:
    """Checks that no node of a graph from Dynamo writes a tensor, or a view of one, whose elements share memory.

    Raises:
        RuntimeError: one does; the message names its line.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _check(part.graph)


def _check(graph: fx.Graph) -> None:
    shared: set[fx.Node] = set()  # whose elements share memory, and views of those
    for node in graph.nodes:
        if any(target in shared for target in _written(node)):
            line = source_line(node)
            raise RuntimeError(f"{MEETS_ITSELF} ({node.target}{f' at {line}' if line else ''})")
        of_shared = [source for source in node.all_input_nodes if source in shared]
        if _shares(_value(node)) or any(_storages(node) & _storages(source) for source in of_shared):
            shared.add(node)


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the nodes whose tensors a node writes."""
    written: list[Any] = [node.kwargs.get("out")]
    if isinstance(node.target, OpOverload):
        for place, argument in enumerate(schema_of(node.target).arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
                written.append(given)
    elif node.op in ("call_method", "call_function") and node.args and _changes_first(node):
        written.append(node.args[0])
    yield from _nodes(written)


def _changes_first(node: fx.Node) -> bool:
    """Returns whether a method or function of torch's Python interface writes its first argument."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.target in _OPERATORS or name in _METHODS or (name.endswith("_") and not name.endswith("__")):
        return name not in _METADATA
    if not callable(node.target) or not str(getattr(node.target, "__module__", "")).startswith("torch.nn"):
        return False
    try:
        return bool(inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # it says nothing of its arguments
        return False


def _nodes(tree: Any) -> Iterator[fx.Node]:
    """Yields the nodes in an argument."""
    if isinstance(tree, fx.Node):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _nodes(item)


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _storages(node: fx.Node) -> set[int]:
    value = _value(node)
    tensors = value if isinstance(value, (list, tuple)) else (value,)
    return {storage_key(t) for t in tensors if isinstance(t, torch.Tensor) and t.layout is torch.strided}


def _shares(value: Any) -> bool:
    """Returns whether elements of a tensor share memory, in the call that the graph is made for."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    shape, strides = _numbers(value.shape), _numbers(value.stride())
    return shape is not None and strides is not None and lies_twice(shape, strides)


def _numbers(values: Sequence[Any]) -> tuple[int, ...] | None:
    """Returns sizes as they are in this call, without a condition on them; None where that is not known."""
    found = [value if isinstance(value, int) else value.node.hint for value in values]
    return None if None in found else tuple(int(value) for value in found)


__all__ = ["check_writes"]
