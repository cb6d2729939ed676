"""What an overload writes and returns, and which overload computes the same without writing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from umd_torch.lowering import lowering_of
from umd_torch.torch_private import OpOverload, schema_of

aten = torch.ops.aten

RANDOM: dict[Any, Any] = {
    aten.normal_.default: aten.normal_functional.default,
    aten.uniform_.default: aten.uniform.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.exponential_.default: aten.exponential.default,
    aten.geometric_.default: aten.geometric.default,
    aten.log_normal_.default: aten.log_normal.default,
    aten.random_.default: aten.random.default,
    aten.random_.to: aten.random.to,
    getattr(aten.random_, "from"): getattr(aten.random, "from"),
    aten.randperm.out: aten.randperm.default,
    aten.randperm.generator_out: aten.randperm.generator,
}
"""Random overloads that write, whose names or arguments do not tell the functional one."""

ARITHMETIC = frozenset(
    ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "rsub", "addcmul", "addcmul_", "addcdiv", "addcdiv_")
)
"""Ops whose numbers are operands of the program rather than part of it: a learning rate may change every step."""


class Signature:
    """One overload.

    Attributes:
        op: the overload.
        name: "aten.add_.Tensor".
        functional: the overload that computes the same and writes nothing; the op itself where it is one, None where
            there is none.
        writes: (position, name) of each argument that is written.
        returns: per result, the position among `writes` of the argument that is returned, -1 for a new tensor.
        lifts: whether numbers are operands of the program.
        lowered: whether the functional overload has an emitter.
    """

    __slots__ = ("functional", "lifts", "lowered", "name", "op", "returns", "writes")

    def __init__(self, op: OpOverload) -> None:
        schema = schema_of(op)
        self.op, self.name = op, str(op)
        self.writes = tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        names = [name for _, name in self.writes]
        by_set = {frozenset(schema.arguments[p].alias_info.before_set): names.index(n) for p, n in self.writes}
        self.returns = tuple(
            -1 if r.alias_info is None else by_set.get(frozenset(r.alias_info.before_set), -1) for r in schema.returns
        )
        mixed = any(which < 0 for which in self.returns)  # beside what it writes it returns something new
        self.functional = op if not self.writes else None if mixed else functional_of(op)
        self.lowered = self.functional is not None and lowering_of(self.functional) is not None
        self.lifts = self.lowered and schema.name.partition("::")[2] in ARITHMETIC and "_mode" not in self.name

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the arguments that a call writes."""
        return [args[p] if p < len(args) else kwargs[name] for p, name in self.writes]


@functools.cache
def signature_of(op: OpOverload) -> Signature:
    """Returns the signature of an overload."""
    return Signature(op)


def functional_of(op: OpOverload) -> Any:
    """Returns the overload with the same arguments, those that are only written left out; None where there is none."""
    if op in RANDOM:
        return RANDOM[op]
    outs = {a.name for a in schema_of(op).arguments if a.is_out}
    wanted = [(a.name, str(a.type)) for a in schema_of(op).arguments if a.name not in outs]
    for candidate in _relatives(op):
        schema = schema_of(candidate)
        if [(a.name, str(a.type)) for a in schema.arguments] == wanted and not _writes(candidate):
            return candidate
    return None


def with_defaults(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Returns positional arguments with those that torch left out because they are what a random overload assumes."""
    if signature.op not in RANDOM:
        return args
    left = schema_of(signature.op).arguments[len(args) :]
    more = [a.default_value for a in left if not a.kwarg_only and a.has_default_value() and a.name not in kwargs]
    return [*args, *more]


def _writes(op: OpOverload) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema_of(op).arguments)


def _relatives(op: OpOverload) -> Iterator[OpOverload]:
    """Returns the overloads that share a name with an op, its underscore left out."""
    namespace, _, name = schema_of(op).name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.rstrip("_") or name, None)
    if packet is None or not hasattr(packet, "overloads"):
        return
    for overload in packet.overloads():
        yield getattr(packet, overload)
