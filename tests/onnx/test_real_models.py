"""Pretrained models give their known answers, on every device, and the numbers of onnxruntime."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.onnx import real_models
from tests.onnx.real_models import Array, Feeds, model_path
from umd_core.registry import open_device
from umd_onnx import InferenceSession, load

onnxruntime.set_default_logger_severity(4)
ROOT = Path(__file__).resolve().parent.parent.parent
FACE = {"input.1": [None, 3, None, None]}
Run = Callable[..., list[Array]]


def by_onnxruntime(source: Any, feeds: Feeds) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    content = source if isinstance(source, bytes) else str(source)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, feeds)]


@pytest.fixture(scope="module", params=["sim:0", "grpc"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a model by name on a device, one session a model."""
    name: str = request.param
    if name == "grpc":
        name = f"grpc://{request.getfixturevalue('served')}/sim:0"
    device = open_device(name)
    sessions: dict[str, InferenceSession] = {}

    def by_umd(model: str, feeds: Feeds) -> list[Array]:
        if model not in sessions:
            sessions[model] = load(model_path(model), device, shapes=FACE if model == "centerface" else None)
        return sessions[model].run(None, feeds)

    yield by_umd
    for session in sessions.values():
        session.close()
    device.close()


def close(results: list[Array], wanted: list[Array], rtol: float, atol: float) -> None:
    assert [array.shape for array in results] == [array.shape for array in wanted]
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, want, rtol=rtol, atol=atol)


def face(results: list[Array]) -> tuple[float, tuple[int, int]]:
    heat = results[0][0, 0]
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    return float(heat.max()), (4 * int(row), 4 * int(column))


def test_centerface_finds_the_face_of_the_astronaut(run: Run) -> None:
    score, (row, column) = face(run("centerface", real_models.astronaut()))
    assert score == pytest.approx(0.929, abs=5e-4)
    assert abs(row - 100) < 24 and abs(column - 220) < 24  # noqa: PT018  # one place


def test_ocr_reads_a_line_of_the_page(run: Run) -> None:
    (probability,) = run("ocr detection", real_models.page())
    line = real_models.longest_line(probability)
    (scores,) = run("ocr recognition", real_models.line_to_read(line))
    assert "background. These markers are pixels that we can label" in real_models.read_text(scores)
    (angles,) = run("ocr angle", real_models.line_both_ways(line))
    assert angles.argmax(1).tolist() == [0, 1]  # upright, upside down


def test_minilm_separates_similar_from_unrelated_sentences(run: Run) -> None:
    feeds = real_models.sentences()
    eating, meal, market = real_models.meanings(run("minilm", feeds)[0], feeds["attention_mask"])
    assert float(eating @ meal) == pytest.approx(0.685, abs=1e-3)
    assert float(eating @ market) == pytest.approx(0.008, abs=1e-3)


def test_silero_marks_the_speech(run: Run) -> None:
    chance = run("silero", real_models.all_frames())[0].reshape(-1)
    assert (int((chance > 0.5).sum()), chance.size) == (93, 166)
    assert chance[:31].max() < 0.1  # the silence before
    assert chance[34:54].min() > 0.5  # "Hello world"
    assert chance[-20:].max() < 0.1


def test_magika_names_the_types_of_files(run: Run) -> None:
    config = real_models.located("magika", "models/standard_v3_3/config.min.json").read_bytes()
    labels = json.loads(config)["target_labels_space"]
    own = ("umd_core/translate.py", "clients/node/package.json", "pyproject.toml", "protos/umd/graph.proto")
    files = [(ROOT / name).read_bytes() for name in own]
    files.append(real_models.located("sklearn", "datasets/images/china.jpg").read_bytes())
    (scores,) = run("magika", real_models.files_to_name(files))
    assert [labels[index] for index in scores.argmax(1)] == ["python", "json", "toml", "proto", "jpeg"]
    assert scores.max(1).min() > 0.9


def _stream() -> Feeds:
    frames = real_models.spoken_frames()
    return {"input": frames[40:41], "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}


def _noise(*shape: int) -> Feeds:
    return {"x": np.random.default_rng(7).standard_normal(shape).astype(np.float32)}


ORACLE: dict[str, tuple[Callable[[], Feeds], float, float]] = {
    "centerface": (lambda: {"input.1": 255 * np.abs(_noise(10, 3, 32, 32)["x"])}, 1e-3, 1e-4),
    "ocr detection": (lambda: _noise(1, 3, 96, 160), 1e-4, 1e-5),
    "ocr recognition": (lambda: _noise(1, 3, 48, 96), 1e-3, 1e-5),
    "ocr angle": (lambda: _noise(2, 3, 48, 192), 1e-4, 1e-5),
    "minilm": (real_models.sentences, 1e-4, 1e-5),
    "silero": (lambda: {**real_models.all_frames(), "input": real_models.spoken_frames()[:60]}, 1e-4, 1e-5),
    "silero stream": (_stream, 1e-4, 1e-5),
    "magika": (lambda: real_models.files_to_name([b"def f(x):\n    return x\n" * 60]), 1e-4, 1e-6),
}
"""For each model: what goes in, and how far from onnxruntime the results may be (relative, absolute)."""


@pytest.mark.parametrize("name", ORACLE)
def test_the_numbers_are_those_of_onnxruntime(name: str) -> None:
    feeds, rtol, atol = ORACLE[name]
    with load(model_path(name), "sim:0") as session:
        close(session.run(None, feeds()), by_onnxruntime(model_path(name), feeds()), rtol, atol)


@pytest.mark.parametrize("name", ORACLE)
def test_the_numbers_on_the_cuda_kernels(name: str) -> None:
    feeds, rtol, atol = ORACLE[name]
    with load(model_path(name), "cuda-cpu:0") as session:
        close(session.run(None, feeds()), by_onnxruntime(model_path(name), feeds()), rtol, atol)


@pytest.mark.parametrize("name", ["ocr angle", "minilm"])
def test_clean_ups_make_fewer_launches_of_the_same_results(name: str) -> None:
    feeds, rtol, atol = ORACLE[name]
    with load(model_path(name), "sim:0", passes=()) as plain, load(model_path(name), "sim:0") as clean:
        close(clean.run(None, feeds()), plain.run(None, feeds()), rtol, atol)
        buffers = [session.prepare(feeds()) for session in (clean, plain)]
    fewer, all_of_them = (len(buffer.commands) for buffer in buffers if buffer is not None)
    assert fewer < all_of_them


def test_a_stream_of_speech_keeps_its_state() -> None:
    feeds, states = _stream(), []
    other = dict(feeds)
    with load(model_path("silero stream"), "sim:0") as session:
        for frame in real_models.spoken_frames()[36:42]:
            feeds["input"] = other["input"] = frame[None]
            chance, feeds["state"] = session.run(None, feeds)
            want, other["state"] = by_onnxruntime(model_path("silero stream"), other)
            states.append(feeds["state"])
            np.testing.assert_allclose(chance, want, rtol=1e-4, atol=1e-5)
    assert np.abs(states[0] - states[-1]).max() > 0.1


def test_the_example_names_files() -> None:
    files = [str(ROOT / "pyproject.toml"), str(ROOT / "umd_core" / "ir.py")]
    command = [sys.executable, str(ROOT / "examples" / "onnx_file_types.py"), "--device", "sim:0", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["toml", "python"]


def test_no_package_was_imported_for_its_files() -> None:
    packages = {package for package, _, _ in real_models.FILES.values()}
    assert packages.isdisjoint(sys.modules)
