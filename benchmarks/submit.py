"""Submitting a loaded program again: 16 slots, beside the execution alone and beside NumPy's call."""

from __future__ import annotations

import numpy as np
from measure import interleaved, report

import umd_core as umd
from umd_core.device import Binding
from umd_core.ir import Graph, TensorDesc

SLOTS = 16


def main() -> None:
    """Prints the table."""
    device = umd.open_device("sim:0")
    graph = Graph()
    names = [graph.input(f"x{i}", TensorDesc("f32", (64,))) for i in range(SLOTS - 1)]
    graph.output(graph.add("Sum", names))
    command_buffer = umd.translate(graph)
    program = device.load(command_buffer)
    arrays = [np.ones(64, np.float32) for _ in range(SLOTS)]
    tensors = [device.tensor(array) for array in arrays]
    others = [device.tensor(array) for array in arrays]
    bindings, turned = [t.binding for t in tensors], [t.binding for t in others]
    device.submit(program, bindings).wait()
    out = np.empty(64, np.float32)

    def execute() -> None:
        for call in program.calls:
            call()

    def in_numpy() -> None:
        np.add(arrays[0], arrays[1], out=out)
        for array in arrays[2:-1]:
            np.add(out, array, out=out)

    def alternate() -> None:
        device.submit(program, turned)
        device.submit(program, bindings)

    times = interleaved(
        {
            "NumPy, the same 14 additions": in_numpy,
            "execution alone": execute,
            "submit, same bindings": lambda: device.submit(program, bindings).wait(),
            "submit, equal bindings made anew": lambda: device.submit(program, [Binding(*b) for b in bindings]).wait(),
            "two submits, other buffers in all slots": alternate,
        },
        number=2000,
    )
    alone = times["execution alone"]
    rows = []
    for name, seconds in times.items():
        over = "" if not name.startswith("submit") else (seconds - alone) * 1e6
        rows.append([name, seconds * 1e6, over, "10" if name == "submit, same bindings" else ""])
    report(
        "submit",
        f"Submitting {SLOTS} slots, {len(program.calls)} commands: µs",
        ["case", "µs", "over execution", "goal"],
        rows,
    )


if __name__ == "__main__":
    main()
