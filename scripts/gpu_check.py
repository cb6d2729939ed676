"""Runs on a machine with a GPU what can only be seen there, and writes a report with date, card and versions.

Conformance kit, training, whole models beside torch, compute-sanitizer beside our checked build, bandwidth of each
kernel family, rates of matrix products, costs of launches.

python scripts/gpu_check.py                                                     all of it, into docs/gpu/
python scripts/gpu_check.py --device cuda-cpu:0 --megabytes 1 --extent 64 --kit "test_command" --out /tmp    a trial
"""

from __future__ import annotations

import argparse
import collections
import datetime
import itertools
import json
import math
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
from umd_core.kernels import BY_NAME
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
        except metadata.PackageNotFoundError:  # what is not installed has no version
            continue
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found["card"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        found["card"] = f"nvidia-smi does not answer: {error}"
    return found


def kit(device: str, select: str, deadline: float = math.inf) -> dict[str, Any]:
    """Returns the outcome of the conformance kit: counts, failures with their reasons, and what was left out.

    Args:
        device: what is tested.
        select: pytest's expression for a part of the kit; "" for all of it, ten kernels at a time.
        deadline: by `time.monotonic`; after it no further kernels are begun.
    """
    start = time.monotonic()
    results: dict[str, Any] = {}
    names = sorted(BY_NAME)
    parts = (
        [select] if select else ["not test_kernel", *(" or ".join(names[i : i + 10]) for i in range(0, len(names), 10))]
    )
    left = 0
    for number, part in enumerate(parts):
        if time.monotonic() > deadline:
            left = len(parts) - number
            break
        chosen = part if select or not number else f"test_kernel and ({part})"
        results |= {result.name: result for result in conformance.run(device, select=chosen).results}
    outcomes = collections.Counter(result.outcome for result in results.values())
    failed = {name: r.detail[-400:] for name, r in results.items() if r.outcome == "failed"}
    counts = {outcome: outcomes[outcome] for outcome in ("passed", "failed", "skipped")}
    missing = {"left out, for time": " or ".join(parts[len(parts) - left :])} if left else {}
    seconds = round(time.monotonic() - start, 1)
    return {"ok": not failed and not left, **counts, **missing, "seconds": seconds, "failures": failed}


def training(device: str) -> dict[str, Any]:
    """Returns how the digits network trains on the device beside torch on the CPU: losses and times of a step."""
    from torch.nn import functional  # noqa: PLC0415  # the figures do not need torch

    from umd_torch import digits  # noqa: PLC0415  # torch is heavy, and not every part needs it
    from umd_torch.train_step import train_step  # noqa: PLC0415  # as above

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


def bandwidths(name: str, megabytes: int) -> dict[str, Any]:
    """Returns for each kernel family GB/s (bytes that have to be read and written) and its share of a copy's."""
    device: Any = umd.open_device(name)
    size = megabytes << 20
    recording = Recording()
    target, source = recording.argument(), recording.argument()
    recording.copy((target, 0, size), (source, 0, size))
    copy = 2 * size / fastest(submitting(device, recording.finish(), [size, size]))
    rows: dict[str, Any] = {"copy": {"GB/s": copy / 1e9}}
    for label, (op, shapes, attributes) in families(size // 4).items():
        inputs = [umd.TensorDesc(np.dtype(kind), shape) for kind, shape in shapes]
        command_buffer = umd.translate(op, inputs, caps=device.caps(), **attributes)
        sizes = [bytes_of(x) for x in (*command_buffer.inputs, *command_buffer.outputs)]
        seconds = fastest(submitting(device, command_buffer, sizes))
        rows[label] = {"GB/s": sum(sizes) / seconds / 1e9, "share of copy": sum(sizes) / seconds / copy}
    device.close()
    return rounded(rows)


def bytes_of(desc: umd.TensorDesc) -> int:
    """Returns the bytes of a tensor."""
    return math.prod(desc.shape) * desc.dtype.size


def families(count: int) -> dict[str, tuple[str, list[tuple[str, tuple[int, ...]]], dict[str, Any]]]:
    """Returns for each kernel family an op over some `count` float32: its inputs' types and shapes, and attributes."""
    rows = count // 1024
    x, vector, filters = ("f4", (rows, 1024)), ("f4", (1024,)), ("f4", (16, 16, 3, 3))
    image = ("f4", (max(count // (16 * 64 * 64), 1), 16, 64, 64))
    return {
        "elementwise Add": ("Add", [x, x], {}),
        "elementwise Exp": ("Exp", [x], {}),
        "elementwise, broadcast": ("Mul", [x, vector], {}),
        "transposed copy": ("Transpose", [x], {"perm": [1, 0]}),
        "reduce all": ("ReduceSum", [x], {}),
        "arg_reduce rows": ("ArgMax", [x], {"axis": 1}),
        "rows Softmax": ("Softmax", [x], {}),
        "rows LayerNormalization": ("LayerNormalization", [x, vector, vector], {}),
        "gather rows": ("Gather", [x, ("i8", (rows,))], {}),
        "pool MaxPool": ("MaxPool", [image], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        "conv 3 × 3": ("Conv", [image, filters], {"pads": [1, 1, 1, 1]}),
    }


def products(name: str, extent: int) -> dict[str, Any]:
    """Returns TFLOP/s of square matrix products by element type, by the library and by our kernel."""
    rows: dict[str, Any] = {}
    for dtype in (umd.dtypes.float32, umd.dtypes.float16, umd.dtypes.bfloat16):
        square = umd.TensorDesc(dtype.numpy, (extent, extent))
        row = rows[f"{extent}, {dtype.name}"] = {}
        for label, options in (("library", ""), ("own", "?libraries=0")):
            device: Any = umd.open_device(name + options)
            command_buffer = umd.translate("MatMul", [square, square], caps=device.caps())
            seconds = fastest(submitting(device, command_buffer, [bytes_of(square)] * 3), 5)
            row[f"{label} TFLOP/s"] = 2 * extent**3 / seconds / 1e12
            device.close()
        row["own, share of library"] = row["own TFLOP/s"] / row["library TFLOP/s"]
    return rounded(rows)


def launches(name: str) -> dict[str, Any]:
    """Returns microseconds of a submission of one small addition and of a hundred, direct and as a CUDA graph."""
    small = umd.TensorDesc(np.dtype(np.float32), (16,))
    graph = umd.Graph()
    x = graph.input("x", small)
    for _ in range(100):
        x = graph.add("Add", [x, x])
    graph.output(x)
    one, many = umd.translate("Add", [small, small]), umd.translate(graph)
    rows: dict[str, Any] = {}
    for label, options in (("as a graph", ""), ("direct", "?replay=0")):
        device: Any = umd.open_device(name + options)
        single = fastest(submitting(device, one, [64] * 3), 200) * 1e6
        hundred = fastest(submitting(device, many, [64] * 2), 50) * 1e6
        rows[label] = {"us, one launch": single, "us a launch, of a hundred": hundred / 100}
        device.close()
    return rounded(rows)


def rounded(rows: dict[str, Any]) -> dict[str, Any]:
    """Returns the same with four digits of every number."""
    return {key: _rounded(value) for key, value in rows.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return rounded(value)
    return float(f"{value:.4g}") if isinstance(value, float) else value


Section = Callable[[], dict[str, Any]]


def sections(arguments: argparse.Namespace) -> dict[str, Section]:
    """Returns the parts of the report, those first without which the others mean little."""
    import gpu_models  # noqa: PLC0415  # the figures do not need torch
    import gpu_sanitizer  # noqa: PLC0415  # only where there is a card

    device, begin = arguments.device, time.monotonic()
    return {
        "bandwidth": lambda: bandwidths(device, arguments.megabytes),
        "matrix products": lambda: products(device, arguments.extent),
        "launches": lambda: launches(device),
        "training": lambda: training(device),
        "models": lambda: gpu_models.models(device, fastest),
        "compute-sanitizer, planted faults": gpu_sanitizer.compared,
        "compute-sanitizer, our kernels": lambda: gpu_sanitizer.sample(device),
        "conformance": lambda: kit(device, arguments.kit, begin + 60 * arguments.minutes),
    }


def report_of(arguments: argparse.Namespace, parts: dict[str, Section], seconds: float) -> dict[str, Any]:
    """Returns the report. A part that fails says why; one for which no time is left is named.

    Args:
        arguments: what the report is of.
        parts: what to do, in order.
        seconds: after which no further part is begun.
    """
    now = datetime.datetime.now(datetime.UTC)
    report: dict[str, Any] = {"device": arguments.device, "date": now.isoformat(" ", "minutes"), "versions": versions()}
    begin = time.monotonic()
    for title, part in parts.items():
        if time.monotonic() - begin > seconds:
            report[title] = {"ok": False, "left out": f"{seconds:.0f} seconds were over"}
            continue
        try:
            report[title] = part()
        except Exception as error:  # noqa: BLE001  # the other parts are worth having
            report[title] = {"ok": False, "failed": f"{type(error).__name__}: {error}"}
    report["seconds"] = round(time.monotonic() - begin, 1)
    return report


def wrong(report: dict[str, Any]) -> list[str]:
    """Returns which parts, or rows of parts, are not well."""
    found = []
    for title, part in report.items():
        if isinstance(part, dict):
            found += [title] if part.get("ok") is False else []
            rows = part.items()
            found += [f"{title}: {name}" for name, row in rows if isinstance(row, dict) and row.get("ok") is False]
    return found


def markdown(report: dict[str, Any]) -> str:
    """Returns the report as a page: a table a part, its columns what the rows hold."""
    lines = [f"# {report['device']} on {report['date']}", ""]
    for title, part in report.items():
        if not isinstance(part, dict):
            continue
        lines += [f"## {title.capitalize()}", ""]
        rows = {name: row for name, row in part.items() if isinstance(row, dict) and title != "conformance"}
        columns = list(dict.fromkeys(key for row in rows.values() for key in row))
        if rows:
            lines += ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
            lines += [
                f"| {name} | " + " | ".join(cell(row.get(c, "")) for c in columns) + " |" for name, row in rows.items()
            ]
        else:
            lines += ["| | |", "|---|---|", *(f"| {key} | {cell(value)} |" for key, value in part.items())]
        lines.append("")
    bad = wrong(report)
    return "\n".join([*lines, f"Not well: {', '.join(bad)}." if bad else "All is well.", ""])


def cell(value: Any) -> str:
    """Returns a value as a table's cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Writes the report; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kit", default="", help="pytest's -k expression for a part of the conformance kit")
    parser.add_argument("--only", action="append", help="only this part of the report; may be given several times")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the arrays of the figures")
    parser.add_argument("--extent", type=int, default=4096, help="rows and columns of the matrix product")
    parser.add_argument("--minutes", type=float, default=10, help="after which no further part is begun")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "gpu")
    arguments = parser.parse_args()
    parts = {name: part for name, part in sections(arguments).items() if name in (arguments.only or (name,))}
    report = report_of(arguments, parts, 60 * arguments.minutes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = f"{report['date'][:10]}-{arguments.device.replace(':', '-')}"
    (arguments.out / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (arguments.out / f"{stem}.md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))
    return 1 if wrong(report) else 0


if __name__ == "__main__":
    sys.exit(main())
