"""What the tests of the PyTorch front end share: a device, and functions run on it beside torch."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch deprecates parts of itself when its compiler is imported
    import umd_torch
    from umd_torch.compiled import CompiledGraph
    from umd_torch.runtime import Roles
    from umd_torch.session import Session, session_for
    from umd_torch.tracing import decompositions, tracing

from umd_core.device import Caps
from umd_sim.device import SimDevice
from umd_sim.options import Options

DEVICE = "sim:0"
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Leaves no compiled code, counts or threads from one test to the next."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    umd_torch.counters.reset()
    umd_torch.partition._warned.clear()
    eager = sys.modules.get("umd_torch.eager.devices")
    if eager is not None:
        eager.options.strict = False
    yield
    torch._dynamo.reset()


@pytest.fixture
def only_the_device() -> None:
    """Forbids the eager device's ops the CPU; `_clean` allows it again."""
    from umd_torch.eager import options  # it makes a device type of torch

    options.strict = True


@pytest.fixture(scope="session")
def session() -> Session:
    """Returns the simulator's session."""
    return session_for(DEVICE)


class PlainDevice(SimDevice):
    """The simulator as a device whose memory the host does not see."""

    def caps(self) -> Caps:
        return dataclasses.replace(super().caps(), flags=frozenset())

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        return memoryview(bytes(super().read_memory(memory, offset, size)))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Returns the name of a fresh device that sees nothing of the host's memory, for `options`."""
    device = PlainDevice(Options())
    monkeypatch.setitem(umd_torch.session._SESSIONS, "plain:0", Session("plain:0", device))
    yield "plain:0"
    device.close()


@pytest.fixture(scope="session")
def run(session: Session) -> Run:
    """Returns what traces a function, lowers it, runs it on the simulator and checks the strides that torch stated."""

    def call(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        def flat(*arguments: torch.Tensor) -> tuple[Any, ...]:
            return tuple(pytree.tree_leaves(function(*arguments)))

        with tracing():
            module = make_fx(functionalize(flat), decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
        results = CompiledGraph(session, module, Roles(), strict=True)(list(inputs))
        returned: Any = module.graph.output_node().args[0]
        for result, node in zip(results, returned, strict=True):
            assert result.stride() == node.meta["val"].stride()
        return results if len(results) > 1 else results[0]

    return call


@pytest.fixture(scope="session")
def same(run: Run) -> Callable[..., None]:
    """Returns what asserts that a function gives on the simulator what torch gives, element types included."""

    def check(function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 2e-5, atol: float = 2e-6) -> None:
        wanted = pytree.tree_leaves(function(*inputs))
        got = pytree.tree_leaves(run(function, *inputs))
        assert len(got) == len(wanted)
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)

    return check
