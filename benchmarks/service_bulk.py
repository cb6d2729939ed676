"""Bulk data: writes and reads by stream and through shared memory, beside bare streams, TCP, Arrow Flight and memcpy.

A bare stream takes and gives chunks of the same size as bytes; nothing is checked, and they go nowhere. memcpy copies
between two arrays that were used before, in one process. What the bare stream does when the C library keeps freed
memory stands beside it: umd's server has it so, and a client that streams much.
"""

from __future__ import annotations

import functools
import importlib.util
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from measure import interleaved, report
from service_servers import CHUNK, KEEPING, SIZE, Asked, launch, python, serve

from umd_core.device import Tensor
from umd_grpc.client.remote import RemoteDevice

Works = dict[str, Callable[[], object]]
BULK = 64 << 20
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
WANTED = {"stream": ("bare stream", 0.9), "shared memory": ("memcpy", 0.6)}


def serve_tcp() -> None:
    """Takes (direction, size) and then as many bytes, or gives them, until it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_move, args=(connection,), daemon=True).start()


def _move(connection: socket.socket) -> None:
    room = memoryview(bytearray(BULK))
    while head := connection.recv(1 + SIZE.size, socket.MSG_WAITALL):
        (size,) = SIZE.unpack_from(head, 1)
        if head[:1] == b"w":
            _fill(connection, room[:size])
            connection.sendall(b"k")
        else:
            connection.sendall(room[:size])


def _fill(connection: socket.socket, into: memoryview) -> None:
    while into:
        into = into[connection.recv_into(into) :]


class Tcp:
    """A client of `serve_tcp`."""

    def __init__(self, stack: ExitStack) -> None:
        process = launch(python("serve_tcp()", __name__), stack)
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", int(process.stdout.readline()))))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, data: memoryview) -> None:
        """Sends bytes and waits until they were taken."""
        self._socket.sendall(b"w" + SIZE.pack(len(data)))
        self._socket.sendall(data)
        assert self._socket.recv(1) == b"k"

    def read(self, into: memoryview) -> None:
        """Fills a buffer."""
        self._socket.sendall(b"r" + SIZE.pack(len(into)))
        _fill(self._socket, into)


def serve_flight() -> None:
    """Takes and gives tables of bytes by Arrow Flight, until it is killed."""
    import pyarrow as pa  # noqa: PLC0415  # a peer that may be missing
    from pyarrow import flight  # noqa: PLC0415  # a peer that may be missing

    class Server(flight.FlightServerBase):  # type: ignore[misc,name-defined]  # its package has no types
        """Keeps the table that was put last."""

        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            """Takes a table."""
            self.table = reader.read_all()

        def do_get(self, context: Any, ticket: Any) -> Any:
            """Gives it."""
            return flight.RecordBatchStream(self.table)

    server = Server("grpc://127.0.0.1:0")
    print(pa.__version__, server.port, flush=True)
    server.serve()


def flight_works(data: Any, stack: ExitStack) -> Works:
    """Returns the works of Arrow Flight, none where it is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        return {}
    import pyarrow as pa  # noqa: PLC0415  # a peer that may be missing
    from pyarrow import flight  # noqa: PLC0415  # a peer that may be missing

    port = launch(python("serve_flight()", __name__), stack).stdout.readline().split()[-1]
    client = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{port}"))
    pieces = [pa.record_batch([pa.array(data[at : at + CHUNK])], names=["x"]) for at in range(0, len(data), CHUNK)]
    table = pa.Table.from_batches(pieces)

    def put() -> None:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("x"), table.schema)
        writer.write_table(table)
        writer.close()

    def get() -> None:
        assert client.do_get(flight.Ticket(b"")).read_all().num_rows == len(data)

    return {"Arrow Flight: write": put, "Arrow Flight: read": get}


def bare_works(stack: ExitStack) -> Works:
    """Returns the works of bare streams: as they are, and where freed memory is kept on both sides."""
    works: Works = {}
    for label, environment in (("", {}), (", memory kept", KEEPING)):
        ask = Asked(f"bare({serve('echo', stack, environment).address!r})", stack, environment)
        for way in ("up", "down"):
            works[f"bare stream{label}, {way}"] = functools.partial(_bare, ask, way)
    return works


def _bare(ask: Asked, way: str) -> None:
    assert ask(f"{way} {BULK}") == str(BULK)


def device_works(devices: dict[str, RemoteDevice], data: Any, out: Any) -> Works:
    """Returns writes and reads of devices."""
    works: Works = {}
    for name, device in devices.items():
        held = device.tensor(data)
        works[f"{name}: write"] = functools.partial(device.write, held.storage.buffer, 0, data)
        works[f"{name}: read"] = functools.partial(held.numpy, out)
    return works


def bulk(devices: dict[str, RemoteDevice], stack: ExitStack) -> None:
    """Measures 64 MiB."""
    data, out = np.ones(BULK, np.uint8), np.ones(BULK, np.uint8)
    tcp = Tcp(stack)
    works: Works = {
        "memcpy": functools.partial(np.copyto, out, data),
        "raw TCP: write": functools.partial(tcp.write, data.data),
        "raw TCP: read": functools.partial(tcp.read, out.data),
        **flight_works(data, stack),
        **bare_works(stack),
        **device_works(devices, data, out),
    }
    times = interleaved(works, repeat=15)
    rows: list[list[Any]] = [_row(name, times) for name in times]
    if "Arrow Flight: read" not in times:
        rows.append(["Arrow Flight", "missing: pip install -r benchmarks/requirements.txt", "", "", "", ""])
    header = [f"{BULK >> 20} MiB", "GB/s", "× bare stream", "× with memory kept", "× memcpy", "goal"]
    report("service_bulk", "Bulk data", header, rows)


def _row(name: str, times: dict[str, float]) -> list[Any]:
    seconds, way = times[name], "up" if name.endswith(("write", "up")) else "down"
    bare, kept = times[f"bare stream, {way}"], times[f"bare stream, memory kept, {way}"]
    beside, wanted = WANTED.get(name.split(":", maxsplit=1)[0], ("", ""))
    return [
        name, BULK / seconds / 1e9, bare / seconds, kept / seconds, times["memcpy"] / seconds, f"{beside} {wanted}",
    ]  # fmt: skip


def written(device: RemoteDevice, held: Tensor, data: Any) -> None:
    """Writes, and returns when the device has it."""
    device.write(held.storage.buffer, 0, data)
    device.synchronize()


def sizes(devices: dict[str, RemoteDevice], stack: ExitStack) -> None:
    """Measures small and large transfers: a write ends when the device has the bytes."""
    rows = []
    tcp = Tcp(stack)
    for size in SIZES:
        data, out = np.ones(size, np.uint8), np.ones(size, np.uint8)
        works: Works = {
            "memcpy": functools.partial(np.copyto, out, data),
            "TCP write": functools.partial(tcp.write, data.data),
            "TCP read": functools.partial(tcp.read, out.data),
        }
        for name, device in devices.items():
            held = device.tensor(data)
            works[f"{name} write"] = functools.partial(written, device, held, data)
            works[f"{name} read"] = functools.partial(held.numpy, out)
        times = interleaved(works, number=max(1, min(20, (4 << 20) // size)), repeat=7)
        rows.append([f"{size >> 10:,} KiB", *(seconds * 1e6 for seconds in times.values())])
    report("service_sizes", "Transfers of every size, µs", ["size", *times], rows)


def tables(address: str, stack: ExitStack) -> None:
    """Prints both tables."""
    devices = {
        "stream": RemoteDevice(address, shared_memory=False),
        "shared memory": RemoteDevice(address),
    }
    for device in devices.values():
        stack.callback(device.close)
    bulk(devices, stack)
    sizes(devices, stack)
