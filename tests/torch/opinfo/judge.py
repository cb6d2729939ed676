"""What became of an entry's samples: which of them a device solves, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.torch.opinfo.problems import Problem, exact, seed
from tests.torch.opinfo.runners import Runner

FACTOR = 10
"""How much farther from float64 than torch's float32 a result may be where the default tolerance is too narrow."""


@dataclass(slots=True)
class Outcome:
    """What became of the samples of an entry.

    Attributes:
        samples: how many there were.
        gradients: how many of them have a gradient.
        forward: the samples whose results are wrong or missing, and why.
        backward: those whose gradients are.
    """

    samples: int = 0
    gradients: int = 0
    forward: dict[int, str] = field(default_factory=dict)
    backward: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> dict[str, int]:
        """The first sample that fails, per direction that does."""
        return {name: min(getattr(self, name)) for name in ("forward", "backward") if getattr(self, name)}

    @property
    def reasons(self) -> list[str]:
        """Why the first samples fail."""
        return [f"{name} {at}: {getattr(self, name)[at]}" for name, at in self.first.items()]


Compare = Callable[[Sequence[Tensor], Sequence[Tensor], Callable[[], Sequence[Tensor]]], None]
"""`compare(found, wanted, exact)` raises where they differ; `exact()` gives torch's float64 numbers."""


def by_number(found: Sequence[Tensor], wanted: Sequence[Tensor], precise: Callable[[], Sequence[Tensor]]) -> None:
    """Compares within torch.testing's tolerance, or where that is too narrow by distance from float64.

    Raises:
        AssertionError: they differ.
    """
    assert len(found) == len(wanted), f"{len(found)} results, {len(wanted)} would be right"
    for position, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        try:
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        except AssertionError:
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype or not _near(mine, theirs, precise, position):
                raise


def _near(mine: Tensor, theirs: Tensor, precise: Callable[[], Sequence[Tensor]], position: int) -> bool:
    if not theirs.is_floating_point():
        return False
    truth = precise()[position]
    special = ~torch.isfinite(theirs)
    if not torch.equal(special, ~torch.isfinite(mine)) or not torch.equal(
        mine[special].nan_to_num(), theirs[special].nan_to_num()
    ):
        return False
    ours, torchs = ((x.double() - truth)[~special].abs().max() for x in (mine, theirs))
    return bool(ours <= FACTOR * torchs)


def by_shape(found: Sequence[Tensor], wanted: Sequence[Tensor], _: Callable[[], Sequence[Tensor]]) -> None:
    """Compares shapes and types alone: where numbers are drawn, or not defined.

    Raises:
        AssertionError: they differ.
    """
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in wanted]


def judge(problems: Iterable[Problem | Exception], runner: Runner, compare: Compare = by_number) -> Outcome:
    """Returns what becomes of problems; a problem that torch cannot pose counts as failed."""
    outcome = Outcome()
    for number, problem in enumerate(problems):
        outcome.samples += 1
        if isinstance(problem, Exception):
            outcome.forward[number] = line(problem)
            continue
        outcome.gradients += problem.backward
        _judge(problem, number, runner, compare, outcome)
    return outcome


def _judge(problem: Problem, number: int, runner: Runner, compare: Compare, outcome: Outcome) -> None:
    """Runs both directions at once, and forward alone where that fails."""
    if problem.backward:
        wrong = _attempt(problem, runner, compare, backward=True)
        if not wrong:
            return
        outcome.backward[number] = wrong
    wrong = _attempt(problem, runner, compare, backward=False)
    if wrong:
        outcome.forward[number] = wrong


def _attempt(problem: Problem, runner: Runner, compare: Compare, *, backward: bool) -> str:
    """Returns what is wrong with a run, "" if nothing is."""
    seed()
    try:
        results, gradients = runner(problem, backward)
        compare(results, problem.wanted, lambda: exact(problem).wanted)
        if backward:
            compare(gradients, problem.gradients, lambda: exact(problem).gradients)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the sample's outcome
        return line(error)
    return ""


def line(error: Exception) -> str:
    """Returns an error's type and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
