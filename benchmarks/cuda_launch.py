"""Launches on cuda-cpu: a prepared launch, and a submission of one, beside what NumPy takes for the same addition."""

from __future__ import annotations

from typing import Any

import numpy as np
from measure import interleaved, report

import umd_core as umd

COUNT = 16


def main() -> None:
    """Prints the table."""
    device: Any = umd.open_device("cuda-cpu:0")
    x = np.ones(COUNT, np.float32)
    out = np.empty_like(x)
    program = device.load(umd.translate("Add", [x, x]))
    a, b, c = (device.tensor(x) for _ in range(3))
    bindings = [a.binding, b.binding, c.binding]
    device.submit(program, bindings).wait()
    (call,) = program.calls
    times = interleaved(
        {
            "NumPy, the same addition": lambda: np.add(x, x, out),
            "a prepared launch": call,
            "a submission of one launch": lambda: device.submit(program, bindings).wait(),
        },
        number=2000,
    )
    goals = {"a prepared launch": "10"}
    rows = [[name, seconds * 1e6, goals.get(name, "")] for name, seconds in times.items()]
    report("cuda-launch", f"One launch over {COUNT} float32 on {device.driver.name}: µs", ["case", "µs", "goal"], rows)
    device.close()


if __name__ == "__main__":
    main()
