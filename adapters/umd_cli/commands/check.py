"""`umd check`: the end-to-end check against a running server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.exits import Exit
from umd_cli.output import Json, facts, show

if TYPE_CHECKING:
    from umd_core.errors import UmdError
    from umd_grpc.client.access import Access

ELEMENTS = 1024


def check(
    address: Annotated[
        str, typer.Argument(help="host:port or unix:/path of the server, or grpcs://host:port.")
    ] = "127.0.0.1:50051",
    device: Annotated[str, typer.Option("--device", help="Which of its devices; the first one unless said.")] = "",
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that the server has for each answer.")
    ] = 10.0,
    json: Json = False,
) -> None:
    """Ask a running server for one Add: is it healthy, what did it translate, and is the result right?"""
    from umd_core.errors import DeviceLostError
    from umd_grpc.client.access import Access, read_url

    _, access, named = read_url(address) if "://" in address else ("", Access(address), "")
    try:
        found = end_to_end(access, device or named, timeout)
    except DeviceLostError as error:
        reason, target = vars(error)["reason"], access.target
        raise DeviceLostError(target, f"{reason}; `umd serve --listen {target}` starts a server") from None
    show(found, json, lambda: [facts(found)])
    if found["execution_result"] != "right":
        raise typer.Exit(Exit.FOUND)


def end_to_end(access: Access, device: str, timeout: float) -> dict[str, Any]:
    """Returns what one Add showed: input shape, translate latency, buffer size, kernel name, execution result.

    Raises:
        UmdError: the server cannot be reached, is draining, or refused.
    """
    import numpy as np

    from umd_core.ir import TensorDesc
    from umd_grpc.client import Client

    x, y = np.arange(ELEMENTS, dtype=np.float32), np.full(ELEMENTS, 0.5, np.float32)
    with Client(access, timeout=timeout) as client:
        if not client.healthy():
            raise _draining(access.target)
        start = time.perf_counter()
        answer = client.translate("Add", [TensorDesc.of(x), TensorDesc.of(y)], device=device)
        elapsed = time.perf_counter() - start
    result, seconds = _executed(access, device, timeout, [x, y])
    return {
        "server": access.target,
        "input_shape": [list(x.shape), list(y.shape)],
        "translate_latency_ms": round(elapsed * 1e3, 3),
        "translate_in_server_us": round(answer.server_seconds * 1e6, 1),
        "command_buffer_bytes": len(answer.command_buffer),
        "kernel_name": answer.kernel_name,
        "execution_result": "right" if np.array_equal(result, x + y) else "wrong",
        "execution_ms": round(seconds * 1e3, 3),
    }


def _executed(access: Access, device: str, timeout: float, inputs: list[Any]) -> tuple[Any, float]:
    """Returns the sum that the device computed, and how long that took, connection and upload included."""
    from umd_core.translate import translate
    from umd_grpc.client.remote import RemoteDevice

    start = time.perf_counter()
    remote = RemoteDevice(access, device, timeout=timeout)
    try:
        (result,) = remote.run(translate("Add", inputs, caps=remote.caps()), inputs)
        return result.numpy().copy(), time.perf_counter() - start
    finally:
        remote.close()


def _draining(target: str) -> UmdError:
    from umd_core.errors import DeviceLostError

    return DeviceLostError(target, "the server is draining and takes no new work")
