"""`umd demo`: the digits, trained by torch on the CPU and on a device behind gRPC, side by side."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from umd_core.errors import DeviceLostError
from umd_torch import digits
from umd_torch.counters import counters
from umd_torch.session import session_for

SHOWN = 20
TOLERANCE = 1e-5
SETTLED = 5
"""Steps that are not timed: graphs are traced and translated in them."""
TORCH, COMPILED, WHOLE = "torch CPU", "torch.compile", "train_step"
_UMD = (sys.executable, "-c", "from umd_cli.main import main; main()")
_CHECK = {
    "input shape": "input_shape",
    "translate latency": "translate_latency_ms",
    "command buffer size": "command_buffer_bytes",
    "kernel name": "kernel_name",
    "execution result": "execution_result",
}
_UNITS = {"translate latency": " ms", "command buffer size": " bytes"}


@dataclass(slots=True)
class Run:
    """What one way of training did: losses, seconds of each step, and what it cost in all the steps that were timed."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    round_trips: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    accuracy: float = 0.0

    def step(self, training: digits.Training, batch: digits.Digits) -> None:
        """Trains with one batch and notes what it cost."""
        before = (counters.round_trips, counters.bytes_up, counters.bytes_down)
        start = time.perf_counter()
        self.losses.append(training.step(batch))
        if len(self.losses) > SETTLED:
            self.seconds.append(time.perf_counter() - start)
            self.round_trips += counters.round_trips - before[0]
            self.bytes_up += counters.bytes_up - before[1]
            self.bytes_down += counters.bytes_down - before[2]

    def summary(self) -> dict[str, Any]:
        """Returns the figures of one step, fit for JSON."""
        count = max(len(self.seconds), 1)
        return {
            "losses": self.losses,
            "accuracy": self.accuracy,
            "ms_per_step": statistics.median(self.seconds or [0.0]) * 1e3,
            "round_trips_per_step": self.round_trips / count,
            "bytes_up_per_step": self.bytes_up / count,
            "bytes_down_per_step": self.bytes_down / count,
        }


def agrees(run: Run, reference: Run) -> bool:
    """Returns whether the first losses are the reference's within TOLERANCE, and fall."""
    pairs = list(zip(run.losses[:SHOWN], reference.losses[:SHOWN], strict=True))
    return all(abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs) and falls(run.losses[:SHOWN])


def falls(losses: list[float]) -> bool:
    """Returns whether the last quarter of the losses is clearly below the first."""
    quarter = max(len(losses) // 4, 1)
    return statistics.mean(losses[-quarter:]) < 0.9 * statistics.mean(losses[:quarter])


@contextlib.contextmanager
def served() -> Generator[str]:
    """Yields the address of `umd serve` in another process, which ends with the block.

    Raises:
        DeviceLostError: it did not start; its log says why.
    """
    command = [*_UMD, "serve", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                log.seek(0)
                raise DeviceLostError("umd serve", log.read().strip() or "it ended at once")
            yield json.loads(line)["listen"][0]
        finally:
            process.terminate()


def check(address: str) -> dict[str, Any]:
    """Returns what the original end-to-end check shows for one Add on a running server."""
    done = subprocess.run([*_UMD, "check", address, "--json"], capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise DeviceLostError(address, done.stderr.strip() or "`umd check` said nothing") from None
    return found


def train(device: str, epochs: int, console: Console) -> dict[str, Run]:
    """Returns a run per way of training; the ways take turns with every batch, so a busy machine is fair to all."""
    training, testing = digits.load()
    ways = {
        TORCH: digits.by_torch(),
        COMPILED: digits.by_compile(device),
        WHOLE: digits.by_train_step(device),
    }
    runs = {name: Run() for name in ways}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=epochs * (len(training.labels) // digits.BATCH))
        for batch in digits.batches(training, epochs):
            for name, way in ways.items():
                runs[name].step(way, batch)
            progress.update(task, advance=1, description=f"loss {runs[WHOLE].losses[-1]:.3f}")
    for name, way in ways.items():
        runs[name].accuracy = digits.accuracy(way.finish(), testing)
    return runs


def table(runs: Mapping[str, Run], device: str) -> Table:
    """Returns losses, accuracy and costs side by side."""
    reference = runs[TORCH]
    result = Table(title=f"digits on {device}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", TORCH, COMPILED, "off by", WHOLE, "off by"):
        result.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for number, loss in enumerate(reference.losses[:SHOWN]):
        others = [runs[name].losses[number] for name in (COMPILED, WHOLE)]
        cells = [cell for other in others for cell in (f"{other:.6f}", f"{abs(other - loss) / abs(loss):.0e}")]
        result.add_row(f"loss of step {number + 1}", f"{loss:.6f}", *cells, end_section=number + 1 == SHOWN)
    summaries = [runs[name].summary() for name in (TORCH, COMPILED, WHOLE)]
    for label, key, form in _ROWS:
        first, second, third = (form.format(summary[key]) if summary[key] else "-" for summary in summaries)
        result.add_row(label, first, second, "", third, "")
    base = summaries[0]["ms_per_step"]
    times = [f"{s['ms_per_step'] / base:.2f} x" for s in summaries[1:]]
    result.add_row("beside torch CPU", "", times[0], "", times[1], "")
    return result


_ROWS = (
    ("test accuracy", "accuracy", "{:.2%}"),
    ("round trips a step", "round_trips_per_step", "{:.2f}"),
    ("bytes up a step", "bytes_up_per_step", "{:,.0f}"),
    ("bytes down a step", "bytes_down_per_step", "{:,.0f}"),
    ("ms a step", "ms_per_step", "{:.2f}"),
)


def demo(*, device: str = "", epochs: int = digits.EPOCHS, as_json: bool = False) -> int:
    """Trains and shows what happened; returns the exit code, 0 when the losses agree and fall.

    Args:
        device: where to train; a server is started, in another process, where none is named.
        epochs: passes over the training digits.
        as_json: print one JSON document on stdout instead of the table; progress goes to stderr then.
    """
    console = Console(stderr=as_json, highlight=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.ExitStack() as stack:
            checked: dict[str, Any] = {}
            if not device:
                address = stack.enter_context(served())
                device = f"grpc://{address}/sim:0"
                checked = check(address)
                _show_check(checked, address, console)
                stack.callback(session_for(device).close)
            runs = train(device, epochs, console)
    finally:
        torch.set_num_threads(threads)
    good = all(agrees(runs[name], runs[TORCH]) for name in (COMPILED, WHOLE))
    if as_json:
        document = {"check": checked, "device": device, "agree": good, **{n: r.summary() for n, r in runs.items()}}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        console.print(table(runs, device))
    verdict = f"the first {SHOWN} losses agree within {TOLERANCE:g} and fall"
    console.print(verdict if good else f"WRONG: not so that {verdict}", style="green" if good else "red")
    return 0 if good else 1


def _show_check(found: Mapping[str, Any], address: str, console: Console) -> None:
    console.print(f"one Add, translated and executed by {address}:")
    for label, key in _CHECK.items():
        console.print(f"  {label:20s} {found.get(key)}{_UNITS.get(label, '')}")
