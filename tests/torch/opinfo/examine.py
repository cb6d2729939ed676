"""One entry of op_db, run in one of the ways; one of module_db or optim_db."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.torch.opinfo import ledger, runners
from tests.torch.opinfo.judge import Outcome, judge, line
from tests.torch.opinfo.modules import layer_problems, layers, optimizers, stepped
from tests.torch.opinfo.problems import Problem, entries, problem, samples
from umd_torch.counters import counters
from umd_torch.session import session_for

LAYER_SAMPLES = 2
"""Inputs of each layer in training, and as many in evaluation."""
DEVICE = "sim:0"
RUNNERS: dict[str, Callable[[], runners.Runner]] = {
    "direct": lambda: runners.direct(session_for(DEVICE)),
    "compiled": lambda: runners.compiled(DEVICE),
    "eager": lambda: runners.eager(DEVICE),
}
"""Name → what makes the runner."""

database = functools.cache(entries)


def problems(entry: Any, count: int | None) -> Iterator[Problem | Exception]:
    """Yields the problems that an entry's samples pose, or why torch cannot pose one."""
    try:
        found = samples(entry, count)
    except Exception as error:  # noqa: BLE001  # an entry without samples on a CPU
        yield error
        return
    for sample in found:
        try:
            yield problem(entry, sample)
        except Exception as error:  # noqa: BLE001  # torch refuses its own sample
            yield error


def examine(runner: str, name: str, count: int | None) -> Outcome:
    """Returns what becomes of an entry's samples, of all without a count."""
    if runner == "layers":
        return judge(layer_problems(layers()[name], LAYER_SAMPLES), RUNNERS["direct"]())
    if runner == "optimizers":
        return step(name)
    return judge(problems(database()[name], count), RUNNERS[runner](), ledger.comparison(name))


def names(runner: str) -> list[str]:
    """Returns the entries of a run."""
    tables: dict[str, Callable[[], dict[str, Any]]] = {"layers": layers, "optimizers": optimizers}
    return list(tables.get(runner, database)())


def step(name: str) -> Outcome:
    """Returns what becomes of the steps of a compiled optimizer beside the same steps of torch's own."""
    kind, settings = optimizers()[name]

    def wrap(update: Callable[[], Any]) -> Callable[[], Any]:
        return torch.compile(update, backend="umd", options={"device": DEVICE, "strict": True})

    outcome = Outcome(samples=1)
    torch._dynamo.reset()
    try:
        wanted = stepped(kind, settings, lambda update: update)
        before = counters.submissions
        found = stepped(kind, settings, wrap)
        assert counters.submissions > before, "nothing ran on the device"
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the entry's outcome
        outcome.forward[0] = line(error)
    return outcome
