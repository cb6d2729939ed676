"""A training step on the digits: in process and through gRPC, beside torch eager on the CPU. One thread each."""

from __future__ import annotations

import contextlib
import itertools

import torch
from measure import interleaved, report

from umd_torch import close_sessions, counters, digits
from umd_torch.demo import served

REPEAT = 60
HEADER = ("training step", "ms", "beside torch eager", "beside in process", "round trips", "bytes up", "bytes down")


def main() -> None:
    """Prints ms a step of every way to train, with its ratios and its traffic."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        device = f"grpc://{stack.enter_context(served())}/sim:0"
        ways = {
            "torch eager": digits.by_torch(),
            "torch.compile, sim:0": digits.by_compile("sim:0"),
            "train_step, sim:0": digits.by_train_step("sim:0"),
            "torch.compile, gRPC": digits.by_compile(device),
            "train_step, gRPC": digits.by_train_step(device),
        }
        training, _ = digits.load()
        batches = {name: itertools.cycle(list(digits.batches(training, epochs=1))) for name in ways}
        works = {name: (lambda way=way, feed=batches[name]: way.step(next(feed))) for name, way in ways.items()}
        for work in works.values():
            for _ in range(3):
                work()  # traces and translates
        times = interleaved(works, repeat=REPEAT)
        traffic = {}
        for name, work in works.items():
            counters.reset()
            work()
            traffic[name] = (counters.round_trips, counters.bytes_up, counters.bytes_down)
        rows = [
            (name, 1e3 * time, time / times["torch eager"], time / times[name.replace("gRPC", "sim:0")], *traffic[name])
            for name, time in times.items()
        ]
        close_sessions()
        report("digits", "Training step on the digits, batch 64", HEADER, rows)


if __name__ == "__main__":
    main()
