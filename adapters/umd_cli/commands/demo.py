"""`umd demo`: train on real digits through the whole path."""

from __future__ import annotations

from typing import Annotated

import typer

from umd_cli.output import Json


def demo(
    device: Annotated[
        str,
        typer.Option("--device", help='Where to train, for example "sim:0"; unless said, an own server is started.'),
    ] = "",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training digits.")] = 10,
    json: Json = False,
) -> None:
    """Train a small network on real digits through the whole path, beside torch on the CPU.

    Starts `umd serve` in another process, checks it with one Add, trains in it with torch.compile and with whole steps,
    and shows losses and costs side by side. Exits with 1 if the losses do not agree or do not fall.
    """
    from umd_torch.demo import demo

    raise typer.Exit(demo(device=device, epochs=epochs, as_json=json))
