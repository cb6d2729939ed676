"""A small convolutional network trained as one program: forward, backward and update, beside torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.core.op_arrays import LEVEL_0, on_simulator
from tests.core.recipe_interpreter import run_program
from umd_core.commands import Copy, Dispatch
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import translate

BATCH, CLASSES, LR, STEPS = 6, 3, 3e-3, 5
SHAPES = {"w": (4, 1, 3, 3), "b": (4,), "v": (64, CLASSES), "c": (CLASSES,)}
RUN: dict[str, tuple[Any, Any]] = {
    "every kernel": (None, run_program),
    "level 0": (LEVEL_0, run_program),
    "sim": (None, on_simulator),
    "sim at level 0": (LEVEL_0, on_simulator),
}


def training_step() -> Graph:
    """Conv, Relu, MaxPool, Gemm, LogSoftmax; `target` holds the gradient of the mean loss for the log probabilities."""
    graph = Graph("step")
    x = graph.input("x", TensorDesc("f32", (BATCH, 1, 8, 8)))
    target = graph.input("target", TensorDesc("f32", (BATCH, CLASSES)))
    lr, step = (graph.input(name, TensorDesc("f32", ())) for name in ("lr", "step"))
    p = {name: graph.input(name, TensorDesc("f32", shape)) for name, shape in SHAPES.items()}
    state = {n: [graph.input(f"{m}_{n}", TensorDesc("f32", s)) for m in "mv"] for n, s in SHAPES.items()}
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y = graph.add("Relu", [graph.add("Conv", [x, p["w"], p["b"]], {"pads": [1] * 4})])
    pooled, indices = graph.add_many("umd.MaxPoolWithIndices", [y], 2, window)
    flat = graph.add("Reshape", [pooled, graph.constant(np.array([BATCH, 64]))])
    logs = graph.add("LogSoftmax", [graph.add("Gemm", [flat, p["v"], p["c"]])])
    graph.output(graph.add("ReduceSum", [graph.add("Mul", [logs, target])], {"keepdims": 0}))
    d = graph.add("umd.LogSoftmaxGrad", [target, logs])
    gradients = {"v": graph.add("Gemm", [flat, d], {"transA": 1})}
    rows = graph.constant(np.array([0]))
    gradients["c"] = graph.add("ReduceSum", [d, rows], {"keepdims": 0})
    d = graph.add(
        "Reshape", [graph.add("Gemm", [d, p["v"]], {"transB": 1}), graph.constant(np.array([BATCH, 4, 4, 4]))]
    )
    d = graph.add("umd.ReluGrad", [graph.add("umd.MaxPoolGrad", [d, indices], {"plane_shape": [8, 8]}), y])
    gradients["w"] = graph.add("umd.ConvWeightGrad", [d, x], {"kernel_shape": [3, 3], "pads": [1] * 4})
    gradients["b"] = graph.add("ReduceSum", [d, graph.constant(np.array([0, 2, 3]))], {"keepdims": 0})
    for name, parameter in p.items():
        held = [parameter, *state[name]]
        new = graph.add_many("umd.AdamW", [parameter, gradients[name], *state[name], lr, step], 3)
        for value, source in zip(new, held, strict=True):
            graph.output(value, alias=source)
    return graph


def initial() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=shape) * 0.3).astype("f4") for name, shape in SHAPES.items()}


def batches() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(BATCH, 1, 8, 8)).astype("f4"), rng.integers(0, CLASSES, BATCH)


def torch_losses() -> tuple[list[float], dict[str, Any]]:
    x, labels = (torch.from_numpy(a) for a in batches())
    p = {name: torch.from_numpy(a.astype("f8")).requires_grad_() for name, a in initial().items()}
    optimizer = torch.optim.AdamW(p.values(), LR)
    losses = []
    for _ in range(STEPS):
        y = torch.relu(torch.nn.functional.conv2d(x.double(), p["w"], p["b"], padding=1))
        y = torch.nn.functional.max_pool2d(y, 2).flatten(1)
        loss = torch.nn.functional.cross_entropy(y @ p["v"] + p["c"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().numpy() for name, value in p.items()}


@pytest.mark.parametrize("device", RUN)
def test_losses_and_weights_are_torchs(device: str) -> None:
    caps, run = RUN[device]
    program = translate(training_step(), caps=caps)
    x, labels = batches()
    target = (-np.eye(CLASSES, dtype="f4")[labels] / BATCH).astype("f4")
    parameters = list(initial().values())
    moments = [np.zeros_like(a) for a in parameters for _ in "mv"]
    losses = []
    for step in range(1, STEPS + 1):
        scalars = [np.array(LR, "f4"), np.array(step, "f4")]
        loss, *new = run(program, [x, target, *scalars, *parameters, *moments])
        losses.append(float(loss))
        parameters = new[::3]
        moments = [a for i, a in enumerate(new) if i % 3]
    wanted, weights = torch_losses()
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert losses[-1] < losses[0]
    for got, want in zip(parameters, weights.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-5)


def test_the_step_updates_in_place() -> None:
    program = translate(training_step())
    assert not [c for c in program.commands if isinstance(c, Copy)]
    names = [program.kernels[c.kernel].row.name for c in program.commands if isinstance(c, Dispatch)]
    assert names.count("adamw_kernel") == len(SHAPES)
    assert len(names) <= 24, names
