"""Devices in processes of their own: what ends one of them ends the sessions of one device and nothing else.

`port` is the side of the server's process, `process` that of the worker. They speak over a socket pair, in `messages`;
a worker is spawned, never forked, and ends by itself when the server's process does.
"""

from __future__ import annotations

from umd_grpc.server.worker.port import WorkerPort

__all__ = ["WorkerPort", "in_worker"]


def in_worker(choice: str, device: str) -> bool:
    """Returns whether a device lives in a worker: "on" and "off" say so, "auto" is for real GPUs."""
    return choice == "on" or (choice == "auto" and device.partition(":")[0] == "cuda")
