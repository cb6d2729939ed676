"""What torch says of a node of a graph."""

from __future__ import annotations

import functools
import operator
import os
import re
from typing import Any, NamedTuple

import torch
from torch import fx

from umd_core.dtypes import DType
from umd_torch.builder import Promise, from_torch
from umd_torch.layouts import open_shape
from umd_torch.mutations import OVERWRITE
from umd_torch.symbols import Bound, Open, evaluate, is_symbolic
from umd_torch.torch_private import map_aggregate, run_and_save_rng_state, run_with_rng_state

TORCH = os.path.dirname(torch.__file__)
"""Folder of torch's own code."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class OpenPromise(NamedTuple):
    """What torch says that a node returns, for any sizes: extents that it left open are `Open`."""

    dtype: DType
    shape: tuple[Any, ...]

    @property
    def is_open(self) -> bool:
        """Whether it depends on open sizes."""
        return any(type(extent) is Open for extent in self.shape)

    def closed(self, bound: Bound) -> Promise:
        """Returns the promise as it is in this call."""
        return Promise(self.dtype, tuple([evaluate(extent, bound) for extent in self.shape]))


class Facts(NamedTuple):
    """What a call is, whatever the sizes.

    Attributes:
        kind: "item" of what another node returns, "number", "overwrite" of an input, or "op".
        source: "file:line" of the model's code.
        row_major: whether its first tensor is known to fill its storage in row-major order from the start.
        leaves: the nodes and open sizes among its arguments, in order.
        promised: what torch says that it returns.
        settled: the same where it depends on no open size, else None.
        given: target, arguments and example; a node that was changed has others.
    """

    kind: str
    source: str
    row_major: bool
    leaves: tuple[Any, ...]
    promised: tuple[OpenPromise, ...]
    settled: tuple[Promise, ...] | None
    given: tuple[Any, ...]

    def are_of(self, node: fx.Node) -> bool:
        """Returns whether the node is still what it was."""
        target, args, kwargs, value = self.given
        is_called_so = node.target is target and node.args is args and node.kwargs is kwargs
        return is_called_so and node.meta.get("val") is value

    def promises(self, bound: Bound) -> tuple[Promise, ...]:
        """Returns what torch says that it returns in this call."""
        return tuple([p.closed(bound) for p in self.promised]) if self.settled is None else self.settled


def facts_of(node: fx.Node) -> Facts:
    """Returns what a call is.

    Raises:
        UnsupportedError: it returns tensors that umd does not have.
    """
    given = (node.target, node.args, node.kwargs, node.meta.get("val"))
    kind = _kind(node)
    if kind != "op":
        return Facts(kind, "", False, (), (), (), given)
    leaves: list[Any] = []
    map_aggregate((node.args, node.kwargs), lambda a: leaves.append(_leaf(a)) if _is_leaf(a) else None)
    promised = promised_of(node)
    settled = None if any(p.is_open for p in promised) else tuple([p.closed({}) for p in promised])
    return Facts(kind, source_line(node), fills_its_storage(node), tuple(leaves), promised, settled, given)


def _kind(node: fx.Node) -> str:
    value = node.meta.get("val")
    if node.target is operator.getitem:
        return "item"
    if is_symbolic(value) or isinstance(value, (int, float, bool)):
        return "number"
    return "overwrite" if node.target is OVERWRITE else "op"


def _is_leaf(argument: Any) -> bool:
    return isinstance(argument, fx.Node) or is_symbolic(argument)


def _leaf(argument: Any) -> Any:
    return argument if isinstance(argument, fx.Node) else Open(argument)


def source_line(node: fx.Node) -> str:
    """Returns "file:line" of the model's code that a node came from, "" where torch does not know."""
    return _own_line(node.meta.get("stack_trace") or "")


@functools.lru_cache(1 << 12)
def _own_line(stack: str) -> str:
    frames = _FRAME.findall(stack)
    own = [frame for frame in frames if not frame[0].startswith(TORCH)]
    return ":".join((own or frames)[-1]) if frames else ""


def promised_of(node: fx.Node) -> tuple[OpenPromise, ...]:
    """Returns what torch says that a node returns, one promise per tensor; others count as an empty one.

    Of what comes with a state of the generator torch says nothing.
    """
    value = node.meta.get("val")
    if value is None:
        return ()
    several = value if isinstance(value, (tuple, list)) else (value,)
    result = []
    for item in several:
        if isinstance(item, torch.Tensor):
            result.append(OpenPromise(from_torch(item.dtype), open_shape(item)))
        else:
            result.append(OpenPromise(from_torch(torch.bool), (0,)))
    return tuple(result)


def promises(node: fx.Node, bound: Bound) -> tuple[Promise, ...]:
    """Returns what torch says that a node returns in this call, as `promised_of` has it."""
    return tuple([p.closed(bound) for p in promised_of(node)])


def saves_keys(node: fx.Node) -> bool:
    """Returns whether a node is the state of the generator that a forward graph saves: seed and offset."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and source.target is run_and_save_rng_state and node.args[1:] == (0,)


def holds_keys(node: fx.Node) -> bool:
    """Returns whether a placeholder is the state of the generator that a forward graph saved: seed and offset."""
    return any(user.target is run_with_rng_state and user.args[0] is node for user in node.users)


def fills_its_storage(node: fx.Node) -> bool:
    """Returns whether a node's first tensor lies row-major from the start of its storage, as far as tracing saw."""
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_contiguous() and value.storage_offset() == 0
