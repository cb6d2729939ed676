"""`umd capture`, `umd replay`, `umd compare`: a training step of 200 commands, with faults planted into a device."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import umd_core.registry
from umd_cli.app import app
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.device import Available, BackendInfo, Binding, Device
from umd_core.encoding import decode
from umd_core.errors import Status
from umd_core.hookspecs import hookimpl
from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.registry import Registry
from umd_cuda import host, serial
from umd_cuda.device import CudaDevice
from umd_cuda.host import toolchain
from umd_cuda.host_driver import HostDriver
from umd_cuda.sources import Geometry, KernelSource
from umd_sim.device import SimDevice

UMD = [sys.executable, "-m", "umd_cli"]
TRAINING = """
import sys

import torch
from torch import nn
from torch.nn import functional

from umd_torch.train_step import train_step


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        return x + y * torch.sigmoid(y)


torch.manual_seed(1)
model = nn.Sequential(*[Block() for _ in range(11)], nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = train_step(model, functional.cross_entropy, optimizer, device="sim:0", passes=())  # a launch an op
x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
print("loss", *[step(x, y).item() for _ in range(2)])
"""
TANH_LINE, SIGMOID_LINE = (TRAINING[: TRAINING.index(call)].count("\n") + 1 for call in ("torch.tanh", "torch.sigmoid"))
ADDING = """
import sys

import numpy as np

import umd_core as umd

device = umd.open_device(sys.argv[1])
x = np.arange(4, dtype=np.float32)
print(device.run(umd.translate("Add", [x, x]), [x, x])[0].numpy())
device.close()
sys.exit(int(sys.argv[2]))
"""


def umd(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_umd(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*UMD, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of two captured training steps."""
    folder: Path = tmp_path_factory.mktemp("training")
    script = folder / "train.py"
    script.write_text(TRAINING)
    result = run_umd("capture", folder / "run", "--json", "--", sys.executable, script)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert (found["device"], found["submissions"], found["complete"]) == ("sim:0", 2, True)
    assert found["bytes"] == sum(file.stat().st_size for file in Path(found["folder"]).rglob("*.*"))
    assert result.stderr.startswith("loss ")
    return folder / "run"


@pytest.fixture(scope="module")
def program(training: Path) -> CommandBuffer:
    """Returns the program of a step."""
    (file,) = training.glob("*/programs/*")
    return decode(file.read_bytes())


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMD_CUDA_CACHE", str(request.config.cache.mkdir("umd-cuda")))
        yield


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Device]], None]:
    """Returns what makes a device known as "planted:0"."""

    def plant(open_planted: Callable[[str], Device]) -> None:
        class Plugin:
            @hookimpl
            def umd_register_backends(self) -> list[BackendInfo]:
                return [BackendInfo("planted", lambda: Available(("with a fault",)), open_planted)]

        registry = Registry()
        registry.register(Plugin(), "planted")
        monkeypatch.setattr(umd_core.registry, "registry", lambda: registry)

    return plant


def kernel_names(program: CommandBuffer) -> list[str]:
    """Returns the kernel of each command, "" for one that is no launch."""
    return [program.kernels[c.kernel].row.name if isinstance(c, Dispatch) else "" for c in program.commands]


# on a compiler


def needs_compiler() -> None:
    try:
        toolchain.find_compiler()
    except host.NoCompilerError as error:
        pytest.skip(str(error))


class PlantedSources:
    """The kernels of cuda-cpu, with a sign error in one of them."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel

    def source_for(self, record: KernelRecord, wide: bool = False) -> KernelSource | None:
        source = serial.source_for(record, wide)
        if source is None or record.row.name != self._kernel:
            return source
        assert source.text.count("element(ARGUMENTS(") == 3
        return source._replace(text=source.text.replace("element(ARGUMENTS(", "-element(ARGUMENTS("))

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        return serial.needs_wide(record, flat)

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> Geometry:
        return serial.launch_geometry(record, flat)


class NanAt(CudaDevice):
    """cuda-cpu with a NaN in what the n-th launch writes, counted from 0; launches run in the order of binding."""

    def __init__(self, at: int) -> None:
        super().__init__(HostDriver(), "planted:0", sources=serial)
        self._at, self._count = at, 0

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        call = super().bind(executable, parameters, bindings)
        record, number = executable.record, self._count
        self._count += 1
        if number != self._at:
            return call
        place = next(i for i, operand in enumerate(record.row.operands) if operand.writes)
        view, (buffer, offset, _) = record.views(parameters)[place], bindings[place]

        def run() -> None:
            call()
            nan = memoryview(np.array([np.nan], view.dtype.numpy).tobytes())
            self.write_memory(buffer.memory, offset + view.offset, nan)

        return run


def test_two_right_devices_agree_on_a_training_step(training: Path, program: CommandBuffer) -> None:
    needs_compiler()
    assert len(program.commands) >= 200
    result = umd("compare", training, "--device", "sim:0", "--device", "cuda-cpu:0", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report
    assert (report["ok"], report["submissions"], report["differences"]) == (True, 2, [])
    assert report["commands"] == report["equal"] + report["close"] == 2 * len(program.commands)


def test_a_sign_error_in_one_kernel_of_a_training_step_is_named(
    training: Path, program: CommandBuffer, planted: Callable[..., None]
) -> None:
    needs_compiler()
    kernel = "elementwise_sigmoid_grad_kernel"
    planted(lambda rest: CudaDevice(HostDriver(), "planted:0", sources=PlantedSources(kernel)))
    result = umd("compare", training, "--device", "sim:0", "--device", "planted:0", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    (found,) = report["differences"]
    assert (found["kind"], found["submission"], found["name"]) == ("value", 0, kernel)
    assert found["command"] == kernel_names(program).index(kernel)
    assert found["source"].endswith(f"train.py:{SIGMOID_LINE}")
    assert (found["op"], found["at_fault"]) == ("umd.SigmoidGrad", ["planted:0"])
    first, second = found["values"]
    assert first == pytest.approx(-second, rel=1e-5)
    assert found["expected"] == pytest.approx(first, rel=1e-5)
    page = umd("compare", training, "-d", "sim:0", "-d", "planted:0").stdout
    assert f"submission 0, command {found['command']}: {kernel}<float32>, op umd.SigmoidGrad" in page
    assert "wrong: planted:0" in page
    halved = json.loads(umd("compare", training, "-d", "sim:0", "-d", "planted:0", "--bisect", "--json").stdout)
    assert halved["differences"][0] == found


def test_a_nan_in_the_middle_of_a_training_step_is_named(
    training: Path, program: CommandBuffer, planted: Callable[..., None]
) -> None:
    needs_compiler()
    names = kernel_names(program)
    middle = next(i for i in range(len(names) // 2, len(names)) if names[i] == "elementwise_tanh_grad_kernel")
    launched = sum(bool(name) for name in names[:middle])
    planted(lambda rest: NanAt(launched))
    result = umd("compare", training, "-d", "sim:0", "-d", "planted:0", "--json")
    (found,) = json.loads(result.stdout)["differences"]
    assert result.exit_code == 1
    assert (found["kind"], found["command"], found["name"]) == ("nonfinite", middle, "elementwise_tanh_grad_kernel")
    assert found["source"].endswith(f"train.py:{TANH_LINE}")
    assert found["values"][1] == "nan"
    assert (found["at_fault"], found["element"]) == (["planted:0"], [0])


# without one


class Negating(SimDevice):
    """A simulator with a sign error in tanh."""

    name = "planted:0"

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        return record, super().load_kernel(record, parameters)

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None] | None:
        record, own = executable
        call = super().bind(own, parameters, bindings)
        if record.row.name != "elementwise_tanh_kernel" or call is None:
            return call
        inner = call

        def run() -> None:
            inner()
            view, (buffer, offset, _) = record.views(parameters)[1], bindings[1]
            box = np.ndarray(view.shape, np.float32, buffer.memory, offset + view.offset, view.strides)
            box *= -1

        return run


def test_every_launch_of_a_kernel_is_listed(
    training: Path, program: CommandBuffer, planted: Callable[..., None]
) -> None:
    planted(lambda rest: Negating())
    result = umd("compare", training, "-d", "sim:0", "-d", "planted:0", "--most", 99, "--json")
    found = json.loads(result.stdout)["differences"]
    per_step = Counter(kernel_names(program))["elementwise_tanh_kernel"]
    assert len(found) == 2 * per_step == 22
    assert {one["name"] for one in found} == {"elementwise_tanh_kernel"}
    assert all(one["source"].endswith(f"train.py:{TANH_LINE}") for one in found)


def test_replay_gives_the_recorded_bytes_or_says_that_it_does_not(training: Path, planted: Callable[..., None]) -> None:
    planted(lambda rest: Negating())
    right = umd("replay", training, "--device", "sim:0", "--json")
    report = json.loads(right.stdout)
    assert (right.exit_code, report["ok"], report["submissions"], report["mismatches"]) == (0, True, 2, [])
    assert umd("replay", training, "-d", "sim:0").stdout.startswith("sim:0")
    wrong = umd("replay", training, "-d", "planted:0")
    assert wrong.exit_code == 1
    assert "of submission 0 holds other bytes" in wrong.stdout


def test_capture_passes_output_and_exit_code_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "add.py"
    script.write_text(ADDING)
    result = umd("capture", tmp_path / "run", "--", sys.executable, script, "sim:0", 7)
    assert result.exit_code == 7
    assert "sim:0" in result.stdout
    assert capfd.readouterr().out == "[0. 2. 4. 6.]\n"
    (folder,) = (tmp_path / "run").iterdir()
    assert umd("replay", folder, "-d", "sim:0").exit_code == 0
    limited = umd("capture", tmp_path / "small", "--limit", 10, "--", sys.executable, script, "sim:0", 0)
    assert limited.exit_code == 1
    assert "LimitError: bytes of the capture in" in capfd.readouterr().err


def test_a_program_that_runs_nothing_is_told(tmp_path: Path) -> None:
    result = umd("capture", tmp_path / "run", "--", sys.executable, "-c", "pass")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("nothing was captured")
    assert not (tmp_path / "run").exists()


def test_bad_calls_are_told(training: Path, tmp_path: Path) -> None:
    assert umd("compare", training, "-d", "sim:0").exit_code == 2
    assert umd("capture", tmp_path, "--outputs", "all", "--", "true").exit_code == 2
    assert umd("capture", tmp_path, "--", tmp_path / "nowhere").exit_code == 4
    assert umd("replay", training, "-d", "nowhere:0").exit_code == 10 + Status.UNSUPPORTED
    assert umd("replay", tmp_path, "-d", "sim:0").exit_code == 10 + Status.BAD_BYTES
    assert umd("replay", tmp_path / "nowhere", "-d", "sim:0").exit_code == 4
    for command in (["replay", training, "-d", "sim:0"], ["compare", training, "-d", "sim:0", "-d", "sim:0"]):
        limited = umd(*command, "--memory", 10)
        assert limited.exit_code == 10 + Status.BAD_BYTES
        assert "rule memory" in limited.stderr
    damaged = tmp_path / "damaged"
    shutil.copytree(training, damaged)
    (file,) = damaged.glob("*/events.jsonl")
    file.write_bytes(file.read_bytes()[:-5])
    for command in (["replay", damaged, "-d", "sim:0"], ["compare", damaged, "-d", "sim:0", "-d", "sim:0"]):
        result = umd(*command)
        assert result.exit_code == 10 + Status.BAD_BYTES
        assert "rule truncated" in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_remote_run_is_captured_and_compared(tmp_path: Path) -> None:
    command = [*UMD, "serve", "--backend", "sim", "--listen", "127.0.0.1:0"]
    script = tmp_path / "add.py"
    script.write_text(ADDING)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            device = f"grpc://{json.loads(server.stdout.readline())['listen'][0]}/sim:0"
            result = umd("capture", tmp_path / "run", "--", sys.executable, script, device, 0)
            assert result.exit_code == 0, result.stderr
            assert umd("replay", tmp_path / "run", "-d", "sim:0").exit_code == 0
            assert umd("replay", tmp_path / "run", "-d", device).exit_code == 0
            compared = umd("compare", tmp_path / "run", "-d", "sim:0", "-d", device, "--json")
            assert json.loads(compared.stdout)["equal"] == 1
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
