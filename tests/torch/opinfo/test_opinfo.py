"""Torch's op_db, module_db and optim_db in float32 on the simulator, nothing on the CPU, beside torch.

What fails is in the ledger, with a reason. Two samples of each entry run here, by lowering alone and on the eager
device, and a part of the layers, the optimizers and torch.compile, another one every day (`part.py`). `make opinfo`
runs more of all of them.
"""

from __future__ import annotations

import pytest
import torch

from tests.torch.opinfo import ledger
from tests.torch.opinfo.examine import database, examine, names
from tests.torch.opinfo.judge import by_number, judge
from tests.torch.opinfo.part import by_name, parameters, shares
from tests.torch.opinfo.problems import Problem, problem_of

SAMPLES = 2
ONE_IN = {"eager": 1, "compiled": 24, "layers": 6, "optimizers": 24}
"""Run → one entry in so many runs here, others every day."""

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about its own samples


@pytest.mark.parametrize("name", database())
def test_lowering(name: str) -> None:
    assert not ledger.difference("direct", name, examine("direct", name, SAMPLES))


@pytest.mark.parametrize(
    ("run", "name"), [each for run, one_in in ONE_IN.items() for each in parameters(run, names(run), one_in)]
)
def test_other_runs(run: str, name: str) -> None:
    assert not ledger.difference(run, name, examine(run, name, SAMPLES))


@pytest.mark.parametrize("run", ["direct", *ONE_IN])
def test_the_ledger_names_entries_and_reasons(run: str) -> None:
    failures = ledger.failures(run)
    assert set(failures) <= set(names(run))
    assert {failure.kind for failure in failures.values()} <= set(ledger.reasons())
    assert set(ledger.shapes()) <= set(database())


def test_every_entry_has_its_turn() -> None:
    entries = [str(number) for number in range(100)]
    days = [shares(entries, 24, shard) for shard in range(1000, 1024)]
    assert sorted(name for day in days for name in day) == sorted(entries)
    assert shares(entries, 24, 1024) == days[0]
    marked = [each.marks[0].args[0] for each in parameters("compiled", entries, 24)]
    assert sum(marked) in {len(entries) // 24, len(entries) // 24 + 1}
    assert by_name(["tests/torch", "tests/torch/test_x.py::test_y[a-b.c]"]) == {"test_x.py::test_y[a-b.c]"}


def test_a_wrong_number_is_found() -> None:
    def off(problem: Problem, backward: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        nudge = 1 + 1e-3
        return [t * nudge for t in problem.wanted], problem.gradients

    right = problem_of(lambda x: x.exp(), (torch.randn(4, requires_grad=True),))
    assert judge([right], lambda p, _: (p.wanted, p.gradients), by_number).first == {}
    assert judge([right], off, by_number).first == {"forward": 0, "backward": 0}
    assert judge([right], lambda p, _: (p.wanted, [g + 1 for g in p.gradients]), by_number).first == {"backward": 0}
