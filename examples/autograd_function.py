"""The client of the original design: torch.autograd.Function, every op translated and executed by a server.

Start a server with `umd serve`, then run `python examples/autograd_function.py 127.0.0.1:50051`.

It shows what such a client has to get right: one channel for all calls, a deadline on each, every kind of op
translated once, and a backward that is the forward's derivative, broadcasting included. For whole models use
`torch.compile(model, backend="umd")` or `umd_torch.train_step` instead: a round trip an op is slow by nature.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import umd_core as umd
from umd_core.encoding import decode
from umd_grpc.client import Client

SECONDS = 10.0
"""Deadline of every call."""


class Server:
    """One channel to one server, used by every op.

    Example:
        >>> server = Server("127.0.0.1:50051")
        >>> server("Add", torch.ones(2), torch.ones(2))
    """

    def __init__(self, address: str, seconds: float = SECONDS) -> None:
        self._client = Client(address, timeout=seconds)
        self._device = umd.open_device(f"grpc://{address}/")
        self._translated: dict[Any, umd.CommandBuffer] = {}

    def __call__(self, op: str, *tensors: torch.Tensor, **attributes: Any) -> torch.Tensor:
        """Returns the first result of an op, computed by the server.

        Raises:
            UmdError: the server refused, could not be reached or did not answer in time; the facts say which.
        """
        arrays = [tensor.detach().contiguous().numpy() for tensor in tensors]
        descs = tuple(umd.TensorDesc.of(array) for array in arrays)
        key = (op, descs, tuple(sorted(attributes.items())))
        command_buffer = self._translated.get(key)
        if command_buffer is None:
            answer = self._client.translate(op, descs, attributes)
            command_buffer = self._translated[key] = decode(answer.command_buffer)
            command_buffer.inputs, command_buffer.outputs = descs, answer.outputs
        result = self._device.run(command_buffer, arrays)[0]
        return torch.from_numpy(result.numpy().copy())

    def close(self) -> None:
        """Ends the channel; what the session held on the server is freed."""
        self._device.close()
        self._client.close()


def unbroadcast(gradient: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Returns the gradient of an input of `shape`: what broadcasting repeated is summed."""
    lead = gradient.dim() - len(shape)
    axes = [*range(lead), *(lead + i for i, extent in enumerate(shape) if extent == 1)]
    return gradient.sum(axes).reshape(shape) if axes else gradient


class Add(torch.autograd.Function):
    """x + y."""

    @staticmethod
    def forward(ctx: Any, server: Server, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.shapes = x.shape, y.shape
        return server("Add", x, y)

    @staticmethod
    def backward(ctx: Any, dz: torch.Tensor) -> Any:
        return (None, *(unbroadcast(dz, shape) for shape in ctx.shapes))


class MatMul(torch.autograd.Function):
    """x @ y, both matrices."""

    @staticmethod
    def forward(ctx: Any, server: Server, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.server = server
        ctx.save_for_backward(x, y)
        return server("MatMul", x, y)

    @staticmethod
    def backward(ctx: Any, dz: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        dx = ctx.server("MatMul", dz, y.t()) if wanted[1] else None
        dy = ctx.server("MatMul", x.t(), dz) if wanted[2] else None
        return None, dx, dy


class Relu(torch.autograd.Function):
    """max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, server: Server, x: torch.Tensor) -> torch.Tensor:
        y = server("Relu", x)
        ctx.server = server
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return None, ctx.server("umd.ReluGrad", dy, y)


def network(server: Server, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Returns two linear layers with a Relu between them."""
    first, first_bias, second, second_bias = weights
    hidden = Relu.apply(server, Add.apply(server, MatMul.apply(server, x, first), first_bias))
    result: torch.Tensor = Add.apply(server, MatMul.apply(server, hidden, second), second_bias)
    return result


def main(address: str) -> None:
    """Fits y = sin(3 x) with every op run by the server, and prints the falling loss."""
    torch.manual_seed(0)
    server = Server(address)
    weights = [torch.randn(1, 32), torch.randn(32), torch.randn(32, 1) / 6, torch.zeros(1)]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=0.02)
    x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    for step in range(101):
        optimizer.zero_grad()
        loss = (network(server, x, weights) - torch.sin(3 * x)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    server.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
