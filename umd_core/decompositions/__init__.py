"""Kernels of level 1 in terms of level-0 kernels, for devices that lack them.

A decomposition takes what `Recorder.launch` takes: the extents by name, one view per operand with exactly the axes of
its box, and the fields by name. It records level-0 kernels only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umd_core.decompositions import attention, chain, convolution, pooling, random, rows, scans, sorting, updates
from umd_core.recorder import Recorder
from umd_core.views import View

Decomposition = Callable[[Recorder, Mapping[str, Any], Mapping[str, View], Mapping[str, Any]], None]

DECOMPOSITIONS: dict[str, Decomposition] = {
    "attention_kernel": attention.attention,
    "attention_grad_kernel": attention.attention_grad,
    "elementwise_chain_kernel": chain.chain,
    "conv_kernel": convolution.conv,
    "conv_input_grad_kernel": convolution.input_grad,
    "conv_weight_grad_kernel": convolution.weight_grad,
    "max_pool_kernel": pooling.max_pool,
    "max_pool_index_kernel": pooling.max_pool_index,
    "average_pool_kernel": pooling.average_pool,
    "average_pool_grad_kernel": pooling.average_pool_grad,
    "random_uniform_kernel": random.uniform,
    "random_normal_kernel": random.normal,
    "random_bernoulli_kernel": random.bernoulli,
    "random_integer_kernel": random.integer,
    "softmax_kernel": rows.softmax,
    "log_softmax_kernel": rows.log_softmax,
    "softmax_grad_kernel": rows.softmax_grad,
    "log_softmax_grad_kernel": rows.log_softmax_grad,
    "normalize_kernel": rows.normalize,
    "scan_sum_kernel": scans.scan("add"),
    "scan_prod_kernel": scans.scan("mul"),
    "scan_max_kernel": scans.scan("max"),
    "scan_min_kernel": scans.scan("min"),
    "sort_kernel": sorting.sort,
    "sgd_kernel": updates.sgd,
    "sgd_momentum_kernel": updates.sgd_momentum,
    "adamw_kernel": updates.adamw,
}
"""What replaces each kernel of level 1, by name."""

__all__ = ["DECOMPOSITIONS", "Decomposition"]
