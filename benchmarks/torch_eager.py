"""The eager PyTorch device: µs an op beside torch's CPU and the bare kernel, and round trips of a training step."""

from __future__ import annotations

import os
import warnings

import torch
from measure import interleaved, report
from torch import nn

import umd_core as umd
import umd_torch
from umd_core.ir import TensorDesc
from umd_torch import counters

GOAL = "15"


def ops(device: torch.device) -> None:
    """Prints what calls of cached ops cost."""
    here, there = [[torch.ones(4, 4, device=d) for _ in range(6)] for d in (device, torch.device("cpu"))]
    simulator = umd.open_device("sim:0")
    program = simulator.load(umd.translate("Add", [TensorDesc("f32", (4, 4))] * 2))
    operands = [simulator.tensor(there[0].numpy()) for _ in range(3)]
    bindings = [operand.binding for operand in operands]
    simulator.submit(program, bindings)
    turn = [0]

    def rotate() -> None:
        turn[0] = (turn[0] + 1) % 5
        here[turn[0]].add_(here[turn[0] + 1])

    x, y = here[0], here[1]
    works = {
        "bare kernel, x + y": lambda: program.calls[0](),
        "submit, x + y": lambda: simulator.submit(program, bindings),
        "torch CPU, x + y": lambda: there[0] + there[1],
        "x + y": lambda: x + y,
        "x * 2.5": lambda: x * 2.5,
        "x.add_(y), same tensors": lambda: x.add_(y),
        "x.add_(y), other tensors each time": rotate,
        "x @ y": lambda: x @ y,
        "x[1:]": lambda: x[1:],
        "x[0, 0].item()": lambda: x[0, 0].item(),
    }
    with torch.no_grad():
        times = interleaved(works, number=2000)
    goals = {name: GOAL for name in works if name.startswith("x")}
    rows = [[name, seconds * 1e6, goals.get(name, "")] for name, seconds in times.items()]
    report(
        "torch_eager", f"Eager device, float32 (4, 4), load {os.getloadavg()[0]:.1f}: µs", ["call", "µs", "goal"], rows
    )


def steps(device: torch.device) -> None:
    """Prints what a training step costs, op by op and compiled."""
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    rows = []
    for name, where, compiled in (("torch CPU", "cpu", False), ("eager", device, False), ("compiled", device, True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(
            where
        )
        called = torch.compile(model, backend="umd") if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def step(called=called, optimizer=optimizer, where=where) -> float:  # type: ignore[no-untyped-def]  # bound now
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(called(x.to(where)), y.to(where))
            loss.backward()
            optimizer.step()
            return loss.item()

        seconds = interleaved({name: step}, number=10, repeat=7)[name]
        counters.reset()
        step()
        rows.append([name, seconds * 1e6, counters.submissions, counters.round_trips, counters.programs])
    header = ["MLP step, AdamW", "µs", "submissions", "round trips", "programs"]
    report("torch_eager_steps", f"A training step, load {os.getloadavg()[0]:.1f}", header, rows)


def main() -> None:
    """Prints both tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = umd_torch.connect("sim:0", strict=True)
    ops(device)
    steps(device)


if __name__ == "__main__":
    main()
