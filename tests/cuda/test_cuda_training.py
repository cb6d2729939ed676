"""Training on cuda-cpu: the digits network, beside the simulator and torch itself."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
from torch.nn import functional

from umd_torch import digits
from umd_torch.train_step import train_step

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

STEPS = 12


def batches() -> list[digits.Digits]:
    training, _ = digits.load()
    return list(itertools.islice(digits.batches(training, 1), STEPS))


def trained(device: str) -> tuple[list[float], list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    model = digits.net()
    step = train_step(model, functional.cross_entropy, digits.optimizer(model), device=device)
    losses = [float(step(batch.images, batch.labels)) for batch in batches()]
    step.sync()
    return losses, [parameter.detach().numpy().copy() for parameter in model.parameters()]


def trained_by_torch() -> list[float]:
    model = digits.net()
    optimizer, losses = digits.optimizer(model), []
    for batch in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch.images), batch.labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_network_trains_as_on_the_simulator_and_as_in_torch() -> None:
    losses, parameters = trained("cuda-cpu:0")
    expected, wanted = trained("sim:0")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(losses, trained_by_torch(), rtol=1e-4)
    assert losses[-1] < losses[0] - 0.2
    for got, other in zip(parameters, wanted, strict=True):
        np.testing.assert_allclose(got, other, atol=2e-6)
