"""Translation in process: one op warm and cold, graphs of 10 to 10,000 nodes, memory after a million translations."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import torch
from measure import interleaved, report

import umd_core as umd
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import Translator, translate

X, Y = TensorDesc("f32", (64, 128)), TensorDesc("f32", (128,))
CYCLE = ("Add", "Mul", "Sub", "Max")


def layered(nodes: int, *, distinct: bool = False) -> Graph:
    """Returns a graph of `nodes` elementwise ops; `distinct` gives each its own shape."""
    graph = Graph()
    value = graph.input("x", X)
    other = graph.input("y", Y)
    for index in range(nodes):
        if distinct:
            wide = graph.input(f"w{index}", TensorDesc("f32", (index + 2, 128)))
            graph.output(graph.add(CYCLE[index % 4], [wide, other]))
        else:
            value = graph.add(CYCLE[index % 4], [value, other])
    if not distinct:
        graph.output(value)
    return graph


def single() -> list[list[object]]:
    """Returns the rows for one op beside torch's dispatch of the same op on meta tensors."""
    a, b = torch.empty((64, 128), device="meta"), torch.empty((128,), device="meta")
    translate("Add", [X, Y])
    times = interleaved(
        {
            "torch meta add": lambda: a + b,
            "warm": lambda: translate("Add", [X, Y]),
            "cold": lambda: Translator().op("Add", [X, Y]),
            "cold, with bytes": lambda: bytes(Translator().op("Add", [X, Y])),
        },
        number=2000,
    )
    goals = {"warm": "2", "cold": "60"}
    base = times["torch meta add"]
    return [[f"one Add, {name}", t * 1e6, goals.get(name, ""), t / base] for name, t in times.items()]


def graphs() -> list[list[object]]:
    """Returns the rows for whole graphs, per node."""
    rows: list[list[object]] = []
    for nodes in (10, 100, 1000, 10_000):
        graph, distinct = layered(nodes), layered(min(nodes, 1000), distinct=True)
        times = interleaved(
            {"repeated": lambda g=graph: Translator().graph(g), "distinct": lambda g=distinct: Translator().graph(g)},
            repeat=5 if nodes < 10_000 else 3,
        )
        goal = "25" if nodes == 1000 else ""
        rows.append([f"graph of {nodes}, cold", times["repeated"] / nodes * 1e6, goal, ""])
        if nodes <= 1000:
            rows.append([f"graph of {nodes}, every signature new", times["distinct"] / nodes * 1e6, "", ""])
    return rows


def resident_bytes() -> int:
    """Returns the resident set size of this process."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def growth(count: int = 1_000_000) -> list[list[object]]:
    """Returns the row for memory: growth from 10,000 translations to `count`, over 997 changing signatures."""
    descs = [TensorDesc("f32", (n + 1, 128)) for n in range(997)]
    at_start = 0
    for index in range(count):
        if index == 10_000:
            gc.collect()
            at_start = resident_bytes()
        umd.translate("Add", [descs[index % 997], Y])
    gc.collect()
    return [[f"RSS growth, 10,000 to {count:,} translates, MiB", (resident_bytes() - at_start) / 2**20, "5", ""]]


def main() -> None:
    """Prints the table."""
    np.random.default_rng(0)
    report(
        "translate",
        "translate: µs (per op or per node)",
        ["case", "µs", "goal", "/ torch meta add"],
        [*single(), *graphs(), *growth()],
    )


if __name__ == "__main__":
    main()
