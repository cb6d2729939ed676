"""Kernels of the simulator beside the same work in torch on one CPU thread: µs a call, and the ratio."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import interleaved, report
from torch.nn import functional

from umd_core.dtypes import DType, bfloat16, float16, float32, int64
from umd_core.ir import contiguous_strides
from umd_core.kernels import BY_NAME
from umd_sim.device import limit_blas
from umd_sim.lowerings import lowering_of
from umd_sim.lowerings.layout import Array, bind
from umd_sim.scratch import Scratch

SCRATCH = Scratch()
Work = Callable[[], object]


class Row(NamedTuple):
    """A line of the table."""

    name: str
    ours: Work
    theirs: Work


def kernel(
    name: str,
    types: Sequence[DType],
    extents: Mapping[str, Any],
    arrays: Sequence[Array],
    strides: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Work:
    """Returns the call that runs a kernel over arrays, contiguous over their boxes unless strides are given."""
    row = BY_NAME[name]
    given = strides or {}
    parameters: dict[str, Any] = dict(fields)
    lengths: dict[str, int] = {}
    for extent in row.extents:
        value = extents[extent.name]
        if extent.size:
            value = tuple(value)
            allowed = dict(row.sizes)[extent.size]
            lengths[extent.size] = next(n for n in allowed if n >= len(value))
            value = (1,) * (lengths[extent.size] - len(value)) + value
        parameters[extent.name] = value
    sizes = [lengths[size] for size, _ in row.sizes]
    for operand in row.operands:
        shape: tuple[int, ...] = ()
        for part in operand.box:
            extent = parameters[part]
            shape += extent if isinstance(extent, tuple) else (extent,)
        steps = tuple(given.get(operand.name, contiguous_strides(shape)))
        parameters[f"{operand.name}_offset"] = 0
        parameters[f"{operand.name}_strides"] = (0,) * (len(shape) - len(steps)) + steps
    record = row.record(tuple(types), tuple(sizes))
    block = record.pack(**parameters)
    lowering = lowering_of(row)
    if lowering is None:
        raise SystemExit(f"{name} has no lowering")
    bindings = [(SimpleNamespace(memory=a.reshape(-1).view(np.uint8)), 0, a.nbytes) for a in arrays]
    return bind(lowering(record, block), block, bindings, SCRATCH)


def random(*shape: int, dtype: DType = float32) -> Array:
    """Returns normal random elements."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)


def tensor(array: Array) -> torch.Tensor:
    """Returns the same elements as a torch tensor."""
    if array.dtype == bfloat16.numpy:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array)


def elementwise(name: str, theirs: Callable[..., Any], count: int, operands: int, dtype: DType = float32) -> Row:
    """Returns a line about an expression row over `count` elements."""
    arrays = [random(count, dtype=dtype) for _ in range(operands)] + [np.zeros(count, dtype.numpy)]
    tensors = [tensor(a) for a in arrays[:-1]]
    work = kernel(f"elementwise_{name}_kernel", (dtype,), {"extents": (count,)}, arrays)
    return Row(f"{name} {dtype} {count}", work, lambda: theirs(*tensors))


def select(count: int) -> Row:
    """Returns a line about a choice by an irregular mask."""
    mask, a, b, out = random(count) > 0, random(count), random(count), random(count)
    work = kernel("elementwise_select_kernel", (float32,), {"extents": (count,)}, [mask, a, b, out])
    m, x, y = tensor(mask), tensor(a), tensor(b)
    return Row(f"select float32 {count}", work, lambda: torch.where(m, x, y))


def bias(batch: int, channels: int, plane: int) -> Row:
    """Returns a line about adding a channel's bias."""
    x, b, out = random(batch, channels, plane), random(channels), random(batch, channels, plane)
    work = kernel(
        "elementwise_add_kernel", (float32,), {"extents": (batch, channels, plane)}, [x, b, out], {"b": (0, 0, 1, 0)}
    )
    tx, tb = tensor(x), tensor(b)[:, None]
    return Row(f"add bias {batch}x{channels}x{plane}", work, lambda: tx + tb)


def reduction(
    name: str, theirs: Callable[..., Any], shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType = float32
) -> Row:
    """Returns a line about a reduction over some axes."""
    x = random(*shape, dtype=dtype)
    steps = contiguous_strides(shape)
    kept = [a for a in range(len(shape)) if a not in axes]
    outer, inner = [shape[a] for a in kept], [shape[a] for a in axes]
    strides = (0,) * (4 - len(outer)) + tuple(steps[a] for a in kept)
    strides += (0,) * ((1 if len(inner) == 1 else 4) - len(inner)) + tuple(steps[a] for a in axes)
    if len(outer) <= 1:
        strides = strides[3:]
    out = np.zeros(outer, np.int64 if name.startswith("arg") else dtype.numpy)
    extra = {"select_last": 0} if name.startswith("arg") else {}
    full = name if name.startswith("arg") else f"reduce_{name}"
    work = kernel(f"{full}_kernel", (dtype,), {"outer": outer, "inner": inner}, [x, out], {"x": strides}, **extra)
    tx = tensor(x)
    return Row(f"{name} {dtype} {list(shape)} over {list(axes)}", work, lambda: theirs(tx, axes))


def gemm(rows: int, columns: int, depth: int, batch: int = 1, dtype: DType = float32, transposed: bool = False) -> Row:
    """Returns a line about a matrix product."""
    a, out = random(batch, rows, depth, dtype=dtype), np.zeros((batch, rows, columns), dtype.numpy)
    b = random(batch, columns, depth, dtype=dtype) if transposed else random(batch, depth, columns, dtype=dtype)
    strides = {"b": (columns * depth, 1, depth)} if transposed else {}
    extents = {"batch": (batch,), "rows": rows, "columns": columns, "depth": depth}
    work = kernel("gemm_kernel", (dtype,), extents, [a, b, out], strides)
    ta, tb = tensor(a), tensor(b).transpose(1, 2) if transposed else tensor(b)
    label = f"gemm {dtype} {batch}x{rows}x{columns}x{depth}{' b transposed' if transposed else ''}"
    return Row(label, work, lambda: torch.matmul(ta, tb))


def convolution(
    batch: int, channels: tuple[int, int], plane: int, kernel_size: int, stride: int = 1, groups: int = 1
) -> list[Row]:
    """Returns lines about a convolution and its gradients."""
    c, m, pad = channels[0] // groups, channels[1] // groups, kernel_size // 2
    x, w = random(batch, channels[0], plane, plane), random(channels[1], c, kernel_size, kernel_size)
    tx, tw = tensor(x), tensor(w)
    forward = functools.partial(functional.conv2d, stride=stride, padding=pad, groups=groups)
    ty = forward(tx, tw)
    y = np.ascontiguousarray(ty.numpy())
    dy, tdy, dx, dw = y.copy(), ty.clone(), np.zeros_like(x), np.zeros_like(w)
    extents = {
        "batch": batch, "groups": groups, "out_channels": m, "output": y.shape[2:], "in_channels": c,
        "kernel": w.shape[2:], "input": x.shape[2:],
    }  # fmt: skip
    fields: dict[str, Any] = {"window_strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 2}

    def backward(which: tuple[bool, bool, bool]) -> Work:
        return lambda: torch.ops.aten.convolution_backward(
            tdy, tx, tw, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, which
        )

    label = f"{batch}x{channels[0]}x{plane}x{plane} to {channels[1]} by {kernel_size}x{kernel_size}/{stride}"
    if groups > 1:
        label += f", {groups} groups"
    run: Callable[..., Work] = functools.partial(kernel, types=(float32,), extents=extents, **fields)
    return [
        Row(f"conv {label}", run("conv_kernel", arrays=[x, w, y]), lambda: forward(tx, tw)),
        Row(f"conv dx {label}", run("conv_input_grad_kernel", arrays=[dy, w, dx]), backward((True, False, False))),
        Row(f"conv dw {label}", run("conv_weight_grad_kernel", arrays=[dy, x, dw]), backward((False, True, False))),
    ]


def pooling(batch: int, channels: int, plane: int, size: int, stride: int, pad: int) -> list[Row]:
    """Returns lines about pooling."""
    x = random(batch, channels, plane, plane)
    tx = tensor(x)
    ty = functional.max_pool2d(tx, size, stride, pad)
    y, index, dx = np.zeros(ty.shape, np.float32), np.zeros(ty.shape, np.int64), np.zeros_like(x)
    extents = {"batch": batch * channels, "output": y.shape[2:], "input": x.shape[2:], "kernel": (size, size)}
    fields: dict[str, Any] = {"window_strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 2}
    counts: dict[str, Any] = {"count_pad": 1, "pads_end": (pad,) * 2}
    label = f"{batch}x{channels}x{plane}x{plane} by {size}x{size}/{stride}"
    run: Callable[..., Work] = functools.partial(kernel, types=(float32,), extents=extents, **fields)
    largest = functools.partial(functional.max_pool2d, tx, size, stride, pad)
    average = functools.partial(functional.avg_pool2d, tx, size, stride, pad)
    window = [[size] * 2, [stride] * 2, [pad] * 2]
    backward = functools.partial(torch.ops.aten.avg_pool2d_backward, ty, tx, *window, False, True, None)
    indexed = functools.partial(largest, return_indices=True)
    return [
        Row(f"max_pool {label}", run("max_pool_kernel", arrays=[x, y]), largest),
        Row(f"max_pool with index {label}", run("max_pool_index_kernel", arrays=[x, y, index]), indexed),
        Row(f"average_pool {label}", run("average_pool_kernel", arrays=[x, y], **counts), average),
        Row(f"average_pool dx {label}", run("average_pool_grad_kernel", arrays=[y, dx], **counts), backward),
    ]


def over_rows(rows: int, count: int, dtype: DType = float32) -> list[Row]:
    """Returns lines about softmax and normalisation."""
    x, dy, out = random(rows, count, dtype=dtype), random(rows, count, dtype=dtype), random(rows, count, dtype=dtype)
    tx, tdy = tensor(x), tensor(dy)
    ty, logs = torch.softmax(tx, 1), torch.log_softmax(tx, 1)
    extents = {"outer": (rows,), "inner": (count,)}
    mean, rstd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    soft_dx, log_dx = torch.ops.aten._softmax_backward_data, torch.ops.aten._log_softmax_backward_data
    label = f"{dtype} {rows}x{count}"
    run: Callable[..., Work] = functools.partial(kernel, types=(dtype,), extents=extents)
    norm = kernel("normalize_kernel", (dtype, float32), extents, [x, out, mean, rstd], epsilon=1e-5)
    work = {
        "softmax": (run("softmax_kernel", arrays=[x, out]), lambda: torch.softmax(tx, 1)),
        "log_softmax": (run("log_softmax_kernel", arrays=[x, out]), lambda: torch.log_softmax(tx, 1)),
        "softmax dx": (run("softmax_grad_kernel", arrays=[dy, x, out]), lambda: soft_dx(tdy, ty, 1, ty.dtype)),
        "log_softmax dx": (run("log_softmax_grad_kernel", arrays=[dy, x, out]), lambda: log_dx(tdy, logs, 1, ty.dtype)),
        "normalize": (norm, lambda: torch.native_layer_norm(tx, [count], None, None, 1e-5)),
    }
    return [Row(f"{name} {label}", ours, theirs) for name, (ours, theirs) in work.items()]


def indexing(rows: int, width: int, picks: int) -> list[Row]:
    """Returns lines about picking rows of a table and adding to them, and about a max-pool's gradient."""
    table, out, grad = random(rows, width), random(picks, width), random(rows, width)
    index = np.random.default_rng(1).integers(0, rows, picks)
    tt, ti, tg = tensor(table), tensor(index), tensor(out)
    extents = {"extents": (picks, width), "axis": rows}
    whole = {"index": (1, 0)}
    planes, ty = (64 * 16, 64), torch.zeros(64 * 16, 64)
    spots = np.random.default_rng(2).integers(0, 64, (planes[0], 16))
    dy, dx = random(planes[0], 16), np.zeros(planes, np.float32)
    td, ts = tensor(dy), tensor(spots)
    pool = {"extents": (planes[0], 16), "axis": 64}
    types = (float32, int64)
    gather = kernel("gather_kernel", types, extents, [table, index, out], {**whole, "data": (0, 1, width)})
    scatter = kernel("scatter_add_kernel", types, extents, [out, index, grad], {**whole, "out": (0, 1, width)})
    into_planes = kernel("scatter_add_kernel", types, pool, [dy, spots, dx], {"out": (64, 0, 1)})
    dense = functools.partial(torch.ops.aten.embedding_dense_backward, tg, ti, rows, -1, False)
    return [
        Row(f"gather {picks} rows of {rows}x{width}", gather, lambda: functional.embedding(ti, tt)),
        Row(f"scatter_add {picks} rows to {rows}x{width}", scatter, dense),
        Row("scatter_add 1024x16 into planes of 64", into_planes, lambda: ty.scatter_add_(1, ts, td)),
    ]


def updates(count: int) -> list[Row]:
    """Returns lines about optimizer steps beside torch's, without foreach."""
    p, g, m, v = (np.abs(random(count)) for _ in range(4))
    lr, step = np.full((), 1e-3, np.float32), np.full((), 3, np.float32)
    tp = torch.nn.Parameter(tensor(p.copy()))
    tp.grad = tensor(g.copy())
    sgd, adamw = torch.optim.SGD([tp], 1e-3, foreach=False), torch.optim.AdamW([tp], 1e-3, foreach=False)
    extents = {"extents": (count,)}
    adam: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01, "decoupled": 1}
    sgd_run = kernel("sgd_kernel", (float32,), extents, [p, g, lr], weight_decay=0.0)
    adamw_run = kernel("adamw_kernel", (float32,), extents, [p, g, m, v, lr, step], **adam)
    return [Row(f"sgd {count}", sgd_run, sgd.step), Row(f"adamw {count}", adamw_run, adamw.step)]


def along(rows: int, length: int, count: int) -> list[Row]:
    """Returns lines about running sums, sorts and the first `count` elements of the order, of rows and of columns."""
    x, out = random(rows, length), np.zeros((rows, length), np.float32)
    square, places = np.zeros((rows, length), np.int64), np.zeros((rows, count), np.int64)
    first = np.zeros((rows, count), np.float32)
    tx = tensor(x)
    scan = functools.partial(kernel, "scan_sum_kernel", (float32,), exclusive=0, reverse=0)
    sort = functools.partial(kernel, "sort_kernel", (float32,), descending=1)
    shape, down = {"outer": (rows,), "length": length}, {"x": (1, length), "out": (1, length)}
    whole, few = {**shape, "count": length}, {**shape, "count": count}
    columns = {"outer": (length,), "length": rows}
    name = f"{rows}x{length}"
    return [
        Row(f"running sum {name}", scan(shape, [x, out]), lambda: tx.cumsum(1)),
        Row(f"running sum {name}, columns", scan(columns, [x, out], down), lambda: tx.cumsum(0)),
        Row(f"sort {name}", sort(whole, [x, out, square]), lambda: tx.sort(1, descending=True)),
        Row(f"top {count} of {name}", sort(few, [x, first, places]), lambda: tx.topk(count, 1)),
    ]


def rows() -> list[Row]:
    """Returns every line of the table."""
    table = [elementwise("add", torch.add, n, 2) for n in (1, 1024, 65536, 1 << 20)]
    table += [elementwise("relu", torch.relu, 65536, 1), elementwise("gelu", functional.gelu, 65536, 1), select(65536)]
    table += [elementwise(name, getattr(torch, name), 65536, 1) for name in ("exp", "tanh", "sigmoid", "erf", "rsqrt")]
    table += [elementwise("relu_grad", lambda d, y: torch.ops.aten.threshold_backward(d, y, 0), 65536, 2)]
    table += [
        elementwise(name, getattr(torch, name), 65536, 2, dtype) for name in ("add",) for dtype in (float16, bfloat16)
    ]
    table += [bias(64, 16, 64), bias(64, 32, 16)]
    total: Callable[..., Any] = torch.sum
    table += [reduction("sum", total, (64, 16, 8, 8), (0, 2, 3)), reduction("sum", total, (64, 10), (0,))]
    table += [reduction("sum", total, (1000, 1000), axes) for axes in ((0,), (1,), (0, 1))]
    table += [reduction("max", torch.amax, (1000, 1000), (1,)), reduction("sum", total, (1000, 1000), (1,), bfloat16)]
    table += [reduction("argmax", lambda x, axes: torch.argmax(x, axes[0]), (1000, 1000), (1,))]
    table += [gemm(64, 10, 128, transposed=True), gemm(256, 256, 256), gemm(64, 64, 64, batch=32)]
    table += [gemm(256, 256, 256, dtype=dtype) for dtype in (bfloat16, float16)]
    table += convolution(64, (1, 16), 8, 3) + convolution(64, (16, 32), 4, 3) + convolution(8, (64, 64), 28, 3)
    table += (
        convolution(8, (64, 128), 28, 3, 2) + convolution(8, (64, 128), 28, 1) + convolution(8, (64, 64), 28, 3, 1, 64)
    )
    table += pooling(64, 16, 8, 2, 2, 0) + pooling(64, 32, 4, 2, 2, 0) + pooling(8, 64, 56, 3, 2, 1)
    table += over_rows(64, 10) + over_rows(512, 768) + over_rows(8192, 64)
    table += indexing(1000, 64, 4096) + updates(4608) + updates(1 << 20)
    table += along(1000, 1000, 10) + along(64, 8, 2) + along(1, 32000, 50)
    return table


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    limit_blas(1)
    lines = []
    ratios = []
    with np.errstate(all="ignore"), torch.no_grad():
        for name, ours, theirs in rows():
            number = max(1, min(200, int(2e-3 / max(interleaved({"x": ours}, repeat=2)["x"], 1e-7))))
            times = interleaved({"ours": ours, "theirs": theirs}, number=number, repeat=9)
            ratios.append(times["ours"] / times["theirs"])
            lines.append([name, times["ours"] * 1e6, times["theirs"] * 1e6, ratios[-1]])
    lines.append(["geometric mean", "", "", math.exp(sum(map(math.log, ratios)) / len(ratios))])
    report("sim-kernels", "sim kernels beside torch, one thread", ["kernel", "sim µs", "torch µs", "ratio"], lines)


if __name__ == "__main__":
    main()
