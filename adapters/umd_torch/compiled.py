"""A graph of ATen calls as torch calls it: one runner per set of sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Protocol

from torch import fx

from umd_core.errors import AttributeValueError, UmdError
from umd_core.passes import DEFAULT
from umd_torch.aliases import around, split_off
from umd_torch.emissions import Emissions
from umd_torch.graphs import lower
from umd_torch.partition import split
from umd_torch.runtime import Executable, Roles
from umd_torch.session import Session
from umd_torch.symbols import Bound, bind, hints, is_symbolic

Runner = Callable[[list[Any]], list[Any]]


class Foreign(Protocol):
    """What runs graphs over tensors that are not the CPU's."""

    def session(self, module: fx.GraphModule) -> Session | None:
        """Returns the session of the device that a graph's tensors are on, None where it has none of them."""
        ...

    def runner(
        self,
        session: Session,
        module: fx.GraphModule,
        roles: Roles,
        bound: Bound,
        strict: bool,
        passes: Collection[str],
    ) -> Runner:
        """Returns what runs such a graph for one set of sizes.

        Raises:
            UmdError: with `strict`, what the device cannot run.
        """
        ...


FOREIGN: list[Foreign] = []
"""Asked first."""


def session_of(module: fx.GraphModule, name: str = "") -> Session | None:
    """Returns the session of the device that a graph's tensors are on, None where they are the CPU's.

    Raises:
        AttributeValueError: `name`, a device or a list of them, is given and names another device.
    """
    found = next((session for foreign in FOREIGN if (session := foreign.session(module))), None)
    if found and name and found.name not in [part.strip() for part in name.split(",")]:
        reason = f"{name!r} is another device than {found.name}, on which the tensors are"
        raise AttributeValueError("backend umd", "device", reason, value=name, wanted=f"{found.name!r}, or none")
    return found


def runner(
    session: Session,
    module: fx.GraphModule,
    roles: Roles,
    bound: Bound,
    *,
    strict: bool,
    passes: Collection[str] = DEFAULT,
    emissions: Emissions | None = None,
) -> Runner:
    """Returns what runs a graph for one set of sizes: a program, or several with the CPU between them.

    `emissions` is the graph's own; what sizes do not change of it is then lowered once.

    Raises:
        UmdError: with `strict`, what the device cannot run.
    """
    for foreign in FOREIGN:
        if foreign.session(module):
            return foreign.runner(session, module, roles, bound, strict, passes)
    try:
        return Executable(session, lower(module, bound, emissions=emissions), roles, passes)
    except UmdError as error:
        if strict:
            raise
        return split(session, module, roles, bound, error, passes)


SIZES = 128
"""Sets of sizes whose programs a graph keeps; a program that is needed again after that is translated again."""


class CompiledGraph:
    """A graph on a device: translated at once, and again for every other set of sizes that torch left open."""

    def __init__(
        self,
        session: Session,
        module: fx.GraphModule,
        roles: Roles,
        *,
        strict: bool,
        passes: Collection[str] = DEFAULT,
    ) -> None:
        self._session, self._roles = session, roles
        self._module, self._aliases = split_off(module, roles.resident)
        self._strict, self._passes = strict, passes
        values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
        self._symbolic = {i: v for i, v in enumerate(values) if is_symbolic(v)}
        self._emissions = Emissions() if self._symbolic else None
        self._runners: OrderedDict[tuple[Any, ...], Runner] = OrderedDict()
        examples = hints(self._symbolic)
        self._runner(tuple(examples.values()), bind(self._symbolic, examples))

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Returns the results; the list of arguments is emptied, as torch's boxed convention has it."""
        key = tuple([arguments[i] for i in self._symbolic])
        run = self._runners.get(key)
        if run is None:
            run = self._runner(key, bind(self._symbolic, arguments))
        elif key:
            self._runners.move_to_end(key)
        results = run(arguments)
        arguments.clear()
        return results

    def _runner(self, key: tuple[Any, ...], bound: Bound) -> Runner:
        found = runner(
            self._session,
            self._module,
            self._roles,
            bound,
            strict=self._strict,
            passes=self._passes,
            emissions=self._emissions,
        )
        if self._aliases:
            found = around(found, self._aliases, bound)
        self._runners[key] = found
        if len(self._runners) > SIZES:
            self._runners.popitem(last=False)
        return found


def boxed(graph: Callable[[list[Any]], list[Any]]) -> Runner:
    """Returns the graph as a function marked to take one list of arguments; torch copies marks of functions only."""

    def call(arguments: list[Any]) -> list[Any]:
        return graph(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]  # torch's own convention
    return call
