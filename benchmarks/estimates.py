"""Time estimates beside times: the simulator is calibrated, then programs that nothing was fitted to run on it.

Both are CPU time of one thread, so that other work on the machine counts little. `factor` is the larger of the two by
the smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from measure import report
from onnx_models import Feeds, minilm, recognition, resnet, silero

import umd_core as umd
from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Device
from umd_onnx import load
from umd_sim.timing import estimate
from umd_sim.timing_calibration import calibrate
from umd_sim.timing_cases import HELD_OUT
from umd_sim.timing_profile import Profile, read_profile

HEADER = ("program", "launches", "estimated ms", "measured ms", "factor", "wanted")
WANTED = 2.0
RUNS = 15
MODELS: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    "minilm 1x128": minilm,
    "ocr recognition 320": recognition,
    "silero, 1 frame": silero,
    "resnet18-like": resnet,
}


def programs(device: Device) -> dict[str, CommandBuffer]:
    """Returns what is estimated: the programs that a calibration holds out, and real models."""
    found: dict[str, CommandBuffer] = {}
    for make in HELD_OUT:
        graph, _ = make()
        found[graph.name] = umd.translate(graph, caps=device.caps())
    for name, model in MODELS.items():
        raw, feeds = model()
        with load(raw, device) as session:
            buffer = session.prepare(feeds)
        assert buffer is not None
        found[name] = buffer
    return found


def measured(device: Device, buffer: CommandBuffer) -> float:
    """Returns the least CPU seconds of a run, without what the host does for it: numbers by chance, indices 0."""
    chance = np.random.default_rng(0)
    bindings = []
    for desc in (*buffer.inputs, *buffer.outputs):
        made = device.allocate(desc.byte_size)
        count = desc.byte_size // desc.dtype.size
        if desc.dtype.is_float:
            device.write(made, 0, chance.random(count).astype(desc.dtype.numpy).view(np.uint8))
        bindings.append(Binding(made, 0, made.size))
    program = device.load(buffer)
    device.submit(program, bindings).wait()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        device.submit(program, bindings).wait()
        times.append(time.process_time() - start)
    for binding in bindings:
        device.free(binding.buffer)
    return min(times)


def row(device: Device, profile: Profile, name: str, buffer: CommandBuffer) -> tuple[object, ...]:
    """Returns a program's line of the table."""
    timeline, took = estimate(buffer, profile), measured(device, buffer)
    factor = max(timeline.seconds / took, took / timeline.seconds)
    return name, len(timeline.commands), timeline.seconds * 1e3, took * 1e3, factor, f"<= {WANTED:g}"


def main() -> None:
    """Prints the table."""
    device = umd.open_device("sim:0")
    profile = calibrate(device, read_profile("cpu"), patience=0.3, clock=time.process_time)
    rows = [row(device, profile, name, buffer) for name, buffer in programs(device).items()]
    report("estimates", "Estimated and measured time on sim:0, CPU time of one thread", HEADER, rows)


if __name__ == "__main__":
    main()
