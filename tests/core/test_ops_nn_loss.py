"""Classification losses against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, close, floats, tensors, wide
from umd_core.dtypes import DType, float32
from umd_core.errors import ShapeError
from umd_core.ir import TensorDesc
from umd_core.translate import translate


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(
    data=st.data(), dtype=floats(), weighted=st.booleans(), ignored=st.sampled_from([None, -100, 0, 1]),
    reduction=st.sampled_from(["none", "sum", "mean"]), index=st.sampled_from(["i4", "i8"]),
)  # fmt: skip
def test_losses(
    path: str, data: st.DataObject, dtype: DType, weighted: bool, ignored: int | None, reduction: str, index: str
) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    x = data.draw(tensors(shape, dtype))
    labels = (
        np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, shape[1], (shape[0], *shape[2:])).astype(index)
    )
    if ignored is not None and ignored < 0:
        labels.reshape(-1)[::2] = ignored
    weights = np.abs(data.draw(tensors(shape[1:2], dtype))) if weighted else None
    attributes: dict[str, Any] = {"reduction": reduction}
    arguments: dict[str, Any] = {"reduction": reduction, "weight": None if weights is None else wide(weights)}
    if ignored is not None:
        attributes["ignore_index"] = arguments["ignore_index"] = ignored
    targets = torch.from_numpy(labels.astype("i8"))
    logs = torch.log_softmax(wide(x), 1)
    size = (
        (wide(x).abs().amax() + 2)
        * (1 if weights is None else wide(weights).amax())
        * (labels.size if reduction == "sum" else 1)
    )
    got, log_prob = PATHS[path]("SoftmaxCrossEntropyLoss", [x, labels, weights], attributes, 2)
    close(log_prob, logs, dtype, wide(x).abs() + 2)
    want = torch.nn.functional.nll_loss(logs, targets, **arguments)
    close(got, want, dtype, size + want.abs().nan_to_num(0), 64)
    (got,) = PATHS[path]("NegativeLogLikelihoodLoss", [x, labels, weights], attributes)
    close(got, torch.nn.functional.nll_loss(wide(x), targets, **arguments), dtype, size, 64)


def test_everything_ignored_is_nan_as_in_torch() -> None:
    x, labels = np.ones((2, 3), "f4"), np.full(2, -100)
    for path in PATHS:
        (got,) = PATHS[path]("NegativeLogLikelihoodLoss", [x, labels], {"ignore_index": -100})
        assert got.dtype == float32.numpy
        assert np.isnan(got)


def test_shapes_that_do_not_fit_are_refused() -> None:
    scores, labels, weights = TensorDesc("f32", (2, 3, 4)), TensorDesc("i64", (2, 4)), TensorDesc("f32", (4,))
    op = "SoftmaxCrossEntropyLoss"
    for inputs, name in (
        ([scores, TensorDesc("i64", (2, 3))], "labels"),
        ([scores, labels, weights], "weights"),
        ([TensorDesc("f32", (2,)), labels], "scores"),
    ):
        with pytest.raises(ShapeError) as caught:
            translate(op, inputs)
        assert caught.value.facts()["input"] == name
