"""One call as a graph: what it reads, what it computes, which results are new and which overwrite an argument."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.func import functionalize
from torch.utils import _pytree as pytree

from umd_core.errors import InternalError, UnsupportedError
from umd_core.ir import Graph
from umd_torch.builder import Promise, Value, from_torch
from umd_torch.eager import parts
from umd_torch.eager.builders import EagerBuilder, Finish
from umd_torch.eager.emitters import emitter_of
from umd_torch.eager.signatures import Signature, with_defaults
from umd_torch.eager.slots import Draft, Geometry, is_slot, varying
from umd_torch.eager.torch_private import DRAFTING, UNKNOWN_RESULT
from umd_torch.eager.traced import TracedLowering
from umd_torch.torch_private import FakeTensorMode, make_fx, schema_of
from umd_torch.tracing import decompositions, tracing

T = TypeVar("T")
_NOTHING = Promise(from_torch(torch.bool), (0,))
"""What is promised of a result that is not wanted."""


class ResizedError(Exception):
    """An out= tensor has another shape than the result; `shapes` are those that the written arguments get."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(f"results have the shapes {list(shapes)}")
        self.shapes = shapes


def draft(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[int]) -> Draft:
    """Returns a call as a graph. `args` and `kwargs` have a Slot for each tensor; `targets` are those written.

    Raises:
        UmdError: the op, or what it is asked, is not there.
        ResizedError: an out= tensor has to have another shape first.
        Exception: what torch says is wrong with the call.
    """
    return apart(lambda: _Drafter(signature, targets).run(args, kwargs))


def apart(work: Callable[[], T]) -> T:
    """Returns what `work` returns on a fresh thread, where no mode, transform or autocast of the caller's is set."""
    done: list[T] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            with torch.no_grad():
                done.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again on the caller's thread
            failed.append(error)

    thread = threading.Thread(target=attempt, name=DRAFTING)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


class _Drafter:
    """Drafts one call."""

    def __init__(self, signature: Signature, targets: Sequence[int]) -> None:
        self._signature, self._targets = signature, tuple(targets)
        self._builder = EagerBuilder(Graph(signature.name))
        self._mode = FakeTensorMode()
        self._fakes: dict[Any, torch.Tensor] = {}
        self._written: dict[int, Value] = {}
        self._geometries: dict[int, Geometry] = {}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        """Returns the draft."""
        signature = self._signature
        slots = [s for s in pytree.tree_leaves((args, kwargs), is_leaf=is_slot) if is_slot(s)]
        self._geometries = {s.index: s.geometry for s in slots if not s.on_host}
        if signature.writes:
            self._check_targets(args, kwargs)
        outs = {a.name for a in schema_of(signature.op).arguments if a.is_out}
        if signature.functional is None:
            results, promised = self._traced(signature.op, args, kwargs)
        else:
            kept = {name: value for name, value in kwargs.items() if name not in outs}
            args = with_defaults(signature, args, kwargs)
            make = self._emitted if emitter_of(signature.functional) is not None else self._traced
            results, promised = make(signature.functional, args, kept)
            if signature.writes:
                self._written.update(zip(self._targets, _several(results), strict=False))
        return self._finish(results, promised)

    def _check_targets(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Lets torch say what is wrong with what is written, which the functional overload may allow."""
        self._promise(self._signature.op, args, kwargs)
        shapes = [tuple(self._fakes[False, target].shape) for target in self._targets]
        before = [self._geometries[target].shape for target in self._targets]
        if shapes != before and not any(a.is_out for a in schema_of(self._signature.op).arguments):
            detail = f"output with shape {list(before[0])} doesn't match the broadcast shape {list(shapes[0])}"
            raise RuntimeError(f"{detail} ({self._signature.name})")
        if shapes != before:
            raise ResizedError(shapes)
        self._fakes.clear()  # they are changed

    def _promise(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns what the op returns for such arguments, without elements; raises what torch says is wrong."""
        try:
            with tracing(), self._mode:
                return parts.PROMISES.get(op, op)(*self._faked(args), **self._faked(kwargs))
        except UNKNOWN_RESULT as error:
            raise UnsupportedError("the shape or kind of its results depends on data", op=str(op)) from error

    def _faked(self, tree: Any) -> Any:
        """Returns arguments as torch takes them, on the CPU and without elements."""
        return pytree.tree_map(self._fake, tree, is_leaf=is_slot)

    def _fake(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not is_slot(leaf):
            return leaf
        if leaf.number is not None:
            return leaf.number
        key = (leaf.on_host, leaf.index)
        if key not in self._fakes:
            dtype, shape, strides = leaf.geometry
            with self._mode:
                self._fakes[key] = torch.empty_strided(shape, strides, dtype=dtype)
        return self._fakes[key]

    # by the table

    def _emitted(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns what the op's emitter makes, and the tensors that torch promises."""
        promised = self._promise(op, args, kwargs)
        promises = tuple(
            Promise(from_torch(t.dtype), tuple(t.shape)) if isinstance(t, torch.Tensor) else _NOTHING
            for t in _several(promised)
        )
        self._builder.at("", "", promises)
        if isinstance(promised, torch.Tensor) and 0 in promised.shape:
            return self._builder.full(0, *promises[0]), promised
        emitter: Any = emitter_of(op)
        result = emitter(self._builder, *self._valued(args), **self._valued(kwargs))
        for value, tensor in zip(_several(result), _several(promised), strict=False):
            if value is not None and isinstance(tensor, torch.Tensor):
                _check(op, value, tensor)
        return result, promised

    def _valued(self, tree: Any) -> Any:
        return pytree.tree_map(self._value, tree, is_leaf=is_slot)

    def _value(self, leaf: Any) -> Any:
        if not is_slot(leaf):
            return leaf
        return varying(leaf) if leaf.on_host and self._signature.lifts else self._builder.argument(leaf)

    # by tracing

    def _traced(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns what the op's decomposition makes, and the tensors that torch promises."""
        self._promise(op, args, kwargs)
        self._fakes.clear()
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_slot)
        slots = list({(s.on_host, s.index): s for s in leaves if is_slot(s)}.values())
        shapes: list[Any] = []

        def call(*tensors: torch.Tensor) -> list[Any]:
            given = {(s.on_host, s.index): t for s, t in zip(slots, tensors, strict=True)}
            filled = [given[leaf.on_host, leaf.index] if is_slot(leaf) else self._fake(leaf) for leaf in leaves]
            positional, named = pytree.tree_unflatten(filled, spec)
            results, shape = pytree.tree_flatten(op(*positional, **named))
            shapes.append(shape)
            if not _writes(self._signature, op):
                return results
            return [new for new, target in zip(results, self._signature.returns, strict=True) if target < 0]

        fakes = [self._fake(slot) for slot in slots]
        table = {**decompositions(), **parts.DECOMPOSITIONS}
        try:
            with tracing(), self._mode:
                module = make_fx(functionalize(call), decomposition_table=table)(*fakes)
        except Exception as error:  # torch has accepted the call itself: it is its parts that cannot be traced
            raise UnsupportedError(f"torch cannot trace what it is made of: {error}", op=str(op)) from error
        lowering = TracedLowering(module, self._builder, slots)
        lowering.run()
        self._written.update(lowering.written)
        values = [lowering.value_of(item) for item in lowering.returned]
        promised = [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in lowering.returned]
        if _writes(self._signature, op):
            return values, promised
        return pytree.tree_unflatten(values, shapes[-1]), pytree.tree_unflatten(promised, shapes[-1])

    def _finish(self, results: Any, promised: Any) -> Draft:
        finish = Finish(self._builder, self._written, self._geometries)
        if self._signature.writes:
            new = iter(zip(_several(results), _several(promised), strict=False))
            for which in self._signature.returns:
                if which < 0:
                    finish.result(*next(new))
                else:
                    finish.target(self._targets[which])
            return finish.draft(single=len(self._signature.returns) == 1)
        for value, tensor in zip(_several(results), _several(promised), strict=True):
            finish.result(value, tensor)
        return finish.draft(single=not _is_several(results))


def _is_several(results: Any) -> bool:
    return isinstance(results, (tuple, list)) and not isinstance(results, Value)


def _several(results: Any) -> Sequence[Any]:
    """Returns results as a sequence; one is a sequence of one."""
    return results if _is_several(results) else (results,)


def _writes(signature: Signature, op: Any) -> bool:
    return bool(signature.writes) and op is signature.op


def _check(op: Any, value: Value, wanted: torch.Tensor) -> None:
    if value.shape != tuple(wanted.shape) or value.dtype is not from_torch(wanted.dtype):
        found = f"{value.dtype}{list(value.shape)}"
        raise InternalError(f"{op} became {found}, torch promised {wanted.dtype}{list(wanted.shape)}")
