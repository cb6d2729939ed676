"""umd.SGD and umd.AdamW against torch.optim, and that they update in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, Array, close, floats, tensors, wide
from tests.core.op_arrays import LEVEL_0, shapes
from tests.core.recipe_interpreter import launches, run_program
from umd_core.commands import Dispatch
from umd_core.dtypes import DType
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import translate

LR = 0.0625  # exact in every type


def scalar(value: float, dtype: str = "f4") -> Array:
    return np.array(value, dtype)


def torch_steps(optimizer: Any, p: torch.Tensor, gradients: list[Array]) -> torch.Tensor:
    for g in gradients:
        p.grad = wide(g)
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(
    data=st.data(), shape=shapes(0, 3), dtype=floats(), decay=st.sampled_from([0.0, 0.125]),
    lr=st.sampled_from(["f4", "f8"]), momentum=st.sampled_from([0.0, 0.5]), dampening=st.sampled_from([0.0, 0.25]),
    nesterov=st.booleans(),
)  # fmt: skip
def test_sgd(
    path: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType, decay: float, lr: str, momentum: float,
    dampening: float, nesterov: bool,
) -> None:  # fmt: skip
    nesterov = nesterov and momentum > 0
    dampening = 0.0 if nesterov or not momentum else dampening
    p, *gradients = (data.draw(tensors(shape, dtype)) for _ in range(4))
    ours, m = p, np.full(shape, np.nan, dtype.numpy)  # whatever the momentum holds before the first step
    attributes = {"weight_decay": decay, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    for step, g in enumerate(gradients, 1):
        inputs = [ours, g, m if momentum else None, scalar(LR, lr), scalar(step)]
        ours, *state = PATHS[path]("umd.SGD", inputs, attributes, 2 if momentum else 1)
        m = state[0] if state else m
    q = wide(p).requires_grad_()
    optimizer = torch.optim.SGD([q], LR, momentum, dampening, decay, nesterov)
    want = torch_steps(optimizer, q, gradients)
    size = wide(p).abs() + sum(wide(g).abs() for g in gradients)
    close(ours, want, dtype, size)
    if momentum:
        close(m, optimizer.state[q]["momentum_buffer"], dtype, size)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(
    data=st.data(), shape=shapes(0, 3), dtype=floats(), decay=st.sampled_from([0.0, 0.125]), decoupled=st.booleans(),
    betas=st.sampled_from([(0.9, 0.999), (0.5, 0.75), (0.0, 0.5)]),
)  # fmt: skip
def test_adamw(
    path: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType, decay: float, decoupled: bool,
    betas: tuple[float, float],
) -> None:  # fmt: skip
    p, *gradients = (data.draw(tensors(shape, dtype)) for _ in range(4))
    ours, m, v = p, np.zeros(shape, dtype.numpy), np.zeros(shape, dtype.numpy)
    attributes = {"epsilon": 2.0**-6, "weight_decay": decay, "decoupled": decoupled}
    attributes |= {"beta1": betas[0], "beta2": betas[1]}
    for step, g in enumerate(gradients, 1):
        ours, m, v = PATHS[path]("umd.AdamW", [ours, g, m, v, scalar(LR), scalar(step)], attributes, 3)
    q = wide(p).requires_grad_()
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = make([q], LR, betas, 2.0**-6, decay)
    want = torch_steps(optimizer, q, gradients)
    size = wide(p).abs() + sum(wide(g).abs() for g in gradients) + 1
    close(ours, want, dtype, size, 64)
    close(m, optimizer.state[q]["exp_avg"], dtype, size)
    close(v, optimizer.state[q]["exp_avg_sq"], dtype, size**2)


def test_the_first_step_of_adamw_keeps_its_digits() -> None:
    """1 - 0.999 in float32 has lost four of its digits: the corrections must not be formed so."""
    rng = np.random.default_rng(0)
    p, g = rng.normal(size=64).astype("f4"), rng.normal(size=64).astype("f4")
    q = torch.from_numpy(p.astype("f8")).requires_grad_()
    want = torch_steps(torch.optim.AdamW([q], 3e-3), q, [g])
    for run in PATHS.values():
        got = run("umd.AdamW", [p, g, p * 0, p * 0, scalar(3e-3), scalar(1)], {}, 3)[0]
        moved = got.astype("f8") - p * (1 - 3e-3 * 0.01)
        np.testing.assert_allclose(moved, want.numpy() - p.astype("f8") * (1 - 3e-3 * 0.01), rtol=1e-4, atol=1e-7)


def step_graph() -> Graph:
    """A parameter, its gradient 2 · p, and its AdamW step, written over the parameter and its state."""
    graph, desc, number = Graph("step"), TensorDesc("f32", (5, 3)), TensorDesc("f32", ())
    p, m, v = (graph.input(name, desc) for name in "pmv")
    lr, step = graph.input("lr", number), graph.input("step", number)
    g = graph.add("Add", [p, p])
    for value, source in zip(graph.add_many("umd.AdamW", [p, g, m, v, lr, step], 3), (p, m, v), strict=True):
        graph.output(value, alias=source)
    return graph


def test_a_step_over_its_own_inputs_copies_nothing() -> None:
    buffer = translate(step_graph())
    assert [buffer.kernels[c.kernel].row.name for c in buffer.commands if isinstance(c, Dispatch)] == [
        "elementwise_add_kernel", "adamw_kernel",
    ]  # fmt: skip
    assert len(buffer.commands) == 2


def test_a_step_over_its_own_inputs_is_the_same_on_every_device() -> None:
    rng = np.random.default_rng(3)
    p, m = rng.normal(size=(5, 3)).astype("f4"), rng.normal(size=(5, 3)).astype("f4")
    inputs = [p, m, m**2, scalar(LR), scalar(4)]
    want = PATHS["kernels"]("umd.AdamW", [p, 2 * p, m, m**2, scalar(LR), scalar(4)], {}, 3)
    for caps in (None, LEVEL_0):
        for got, value in zip(run_program(translate(step_graph(), caps=caps), inputs), want, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)


def test_one_kernel_a_step() -> None:
    p = np.zeros(3, "f4")
    copies = ["CopyBytes"]
    assert launches("umd.SGD", [p, p, None, scalar(1), scalar(1)]) == [*copies, "sgd_kernel"]
    assert launches("umd.SGD", [p, p, p, scalar(1), scalar(1)]) == [*copies * 2, "sgd_momentum_kernel"]
    assert launches("umd.AdamW", [p, p, p, p, scalar(1), scalar(1)]) == [*copies * 3, "adamw_kernel"]
    converted = launches("umd.AdamW", [p, p, p, p, scalar(1, "f8"), scalar(1)])
    assert converted[-2:] == ["elementwise_cast_kernel", "adamw_kernel"]
