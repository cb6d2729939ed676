"""Torch's op_db, module_db and optim_db in float32 on the simulator, nothing on the CPU, beside torch.

What fails is in the ledger, with a reason. Two samples of each entry run here, by lowering alone and on the eager
device, and a part of the layers, the optimizers and torch.compile; `make opinfo` runs more of all of them.
"""

from __future__ import annotations

import pytest
import torch

from tests.torch.opinfo import ledger
from tests.torch.opinfo.examine import database, examine, names
from tests.torch.opinfo.judge import by_number, judge
from tests.torch.opinfo.problems import Problem, problem_of

SAMPLES = 2
PART = {"eager": 1, "compiled": 24, "layers": 6, "optimizers": 24}
"""Run → one entry in so many runs here."""

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about its own samples


@pytest.mark.parametrize("name", database())
def test_lowering(name: str) -> None:
    assert not ledger.difference("direct", name, examine("direct", name, SAMPLES))


@pytest.mark.parametrize(("run", "name"), [(run, name) for run, part in PART.items() for name in names(run)[::part]])
def test_other_runs(run: str, name: str) -> None:
    assert not ledger.difference(run, name, examine(run, name, SAMPLES))


@pytest.mark.parametrize("run", ["direct", *PART])
def test_the_ledger_names_entries_and_reasons(run: str) -> None:
    failures = ledger.failures(run)
    assert set(failures) <= set(names(run))
    assert {failure.kind for failure in failures.values()} <= set(ledger.reasons())
    assert set(ledger.shapes()) <= set(database())


def test_a_wrong_number_is_found() -> None:
    def off(problem: Problem, backward: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        nudge = 1 + 1e-3
        return [t * nudge for t in problem.wanted], problem.gradients

    right = problem_of(lambda x: x.exp(), (torch.randn(4, requires_grad=True),))
    assert judge([right], lambda p, _: (p.wanted, p.gradients), by_number).first == {}
    assert judge([right], off, by_number).first == {"forward": 0, "backward": 0}
    assert judge([right], lambda p, _: (p.wanted, [g + 1 for g in p.gradients]), by_number).first == {"backward": 0}
