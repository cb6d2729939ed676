"""Runs on a machine with a GPU what can only be seen there, and writes a report with date, card and versions.

python scripts/gpu_check.py                          the conformance kit, training and figures, into docs/gpu/
python scripts/gpu_check.py --device cuda-cpu:0 --kit "test_command or test_memory" --out /tmp    a trial without a GPU
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import umd_core as umd
from umd_core.device import Binding, SequentialDevice
from umd_core.testing import conformance
from umd_core.testing.recording import Recording

PACKAGES = ("umd-runtime", "numpy", "torch", "cupy-cuda13x", "cupy-cuda12x")
STEPS = 50
TOLERANCE = 1e-4


def versions() -> dict[str, str]:
    """Returns what the figures depend on: packages, Python, the machine, the card and its driver."""
    found = {"python": platform.python_version(), "machine": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found["card"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        found["card"] = f"nvidia-smi does not answer: {error}"
    return found


def kit(device: str, select: str) -> dict[str, Any]:
    """Returns the outcome of the conformance kit: counts, and the failures with their reasons."""
    start = time.perf_counter()
    report = conformance.run(device, select=select)
    failed = {r.name: r.detail[-400:] for r in report.results if r.outcome == "failed"}
    counts = {outcome: report.count(outcome) for outcome in ("passed", "failed", "skipped")}
    return {"ok": report.ok, **counts, "seconds": round(time.perf_counter() - start, 1), "failures": failed}


def training(device: str) -> dict[str, Any]:
    """Returns how the digits network trains on the device beside torch on the CPU: losses and times of a step."""
    from torch.nn import functional  # noqa: PLC0415  # the figures do not need torch

    from umd_torch import digits  # noqa: PLC0415
    from umd_torch.train_step import train_step  # noqa: PLC0415

    batches = list(itertools.islice(digits.batches(digits.load()[0], 3), STEPS))
    model, other = digits.net(), digits.net()
    step = train_step(model, functional.cross_entropy, digits.optimizer(model), device=device)
    losses, seconds = [], []
    for batch in batches:
        start = time.perf_counter()
        losses.append(float(step(batch.images, batch.labels)))
        seconds.append(time.perf_counter() - start)
    optimizer, wanted = digits.optimizer(other), []
    for batch in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(other(batch.images), batch.labels)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    apart = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
    return {
        "ok": apart < TOLERANCE * STEPS,
        "largest difference of a loss": apart,
        "first and last loss": [losses[0], losses[-1]],
        "ms per step, median": round(float(np.median(seconds[len(seconds) // 2 :])) * 1e3, 3),
    }


def fastest(call: Callable[[], object], repeat: int = 20) -> float:
    """Returns the shortest time of a call in seconds; it is not counted while it warms up."""
    best = float("inf")
    for turn in range(repeat + 3):
        start = time.perf_counter()
        call()
        if turn >= 3:
            best = min(best, time.perf_counter() - start)
    return best


def submitting(device: SequentialDevice, command_buffer: Any, sizes: list[int]) -> Callable[[], None]:
    """Returns a call that submits the same work over the same buffers and waits for it."""
    program = device.load(bytes(command_buffer))
    bindings = [Binding(device.allocate(size), 0, size) for size in sizes]

    def submit() -> None:
        device.submit(program, bindings).wait()

    return submit


def figures(name: str, megabytes: int, extent: int) -> dict[str, float]:
    """Returns bandwidths in GB/s (bytes read and written), the rate of a matrix product, and costs of a launch."""
    device: Any = umd.open_device(name)
    size = megabytes << 20
    recording = Recording()
    target, source = recording.argument(), recording.argument()
    recording.copy((target, 0, size), (source, 0, size))
    copy = 2 * size / fastest(submitting(device, recording.finish(), [size, size]))
    result = {"copy GB/s": copy / 1e9}
    count = size // 4
    x = umd.TensorDesc(np.dtype(np.float32), (count // 1024, 1024))
    for op, inputs, moved, outputs in (
        ("Add", [x, x], 3 * size, [size]),
        ("Exp", [x], 2 * size, [size]),
        ("Softmax", [x], 2 * size, [size]),
    ):
        command_buffer = umd.translate(op, inputs, caps=device.caps())
        rate = moved / fastest(submitting(device, command_buffer, [size] * len(inputs) + outputs))
        result[f"{op} GB/s"], result[f"{op} share of copy"] = rate / 1e9, rate / copy
    square = umd.TensorDesc(np.dtype(np.float32), (extent, extent))
    product = umd.translate("MatMul", [square, square], caps=device.caps())
    bytes_of_one = 4 * extent * extent
    for label, options in (("library", ""), ("own", "?libraries=0")):
        other: Any = umd.open_device(name + options)
        seconds = fastest(submitting(other, product, [bytes_of_one] * 3))
        result[f"MatMul {extent} {label} TFLOP/s"] = 2 * extent**3 / seconds / 1e12
        other.close()
    small = umd.TensorDesc(np.dtype(np.float32), (16,))
    add = umd.translate("Add", [small, small])
    for label, options in (("replayed", ""), ("direct", "?replay=0")):
        other = umd.open_device(name + options)
        result[f"one launch {label}, us"] = fastest(submitting(other, add, [64] * 3), 200) * 1e6
        other.close()
    device.close()
    return {key: float(f"{value:.4g}") for key, value in result.items()}


def markdown(report: dict[str, Any]) -> str:
    """Returns the report as a page."""
    lines = [f"# {report['device']} on {report['date']}", ""]
    for title in ("versions", "conformance", "training", "figures"):
        if title in report:
            lines += [f"## {title.capitalize()}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {value} |" for key, value in report[title].items()] + [""]
    return "\n".join(lines)


def main() -> int:
    """Writes the report; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kit", default="", help="pytest's -k expression for a part of the conformance kit")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the arrays of the figures")
    parser.add_argument("--extent", type=int, default=4096, help="rows and columns of the matrix product")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "gpu")
    arguments = parser.parse_args()
    now = datetime.datetime.now(datetime.UTC)
    report: dict[str, Any] = {"device": arguments.device, "date": now.isoformat(" ", "minutes"), "versions": versions()}
    report["conformance"] = kit(arguments.device, arguments.kit)
    report["training"] = training(arguments.device)
    report["figures"] = figures(arguments.device, arguments.megabytes, arguments.extent)
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = f"{now:%Y-%m-%d}-{arguments.device.replace(':', '-')}"
    (arguments.out / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (arguments.out / f"{stem}.md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))
    return 0 if report["conformance"]["ok"] and report["training"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
