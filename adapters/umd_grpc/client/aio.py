"""A device of a server for asyncio: a RemoteDevice whose answers are awaited, and which never keeps the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Caps, Tensor
from umd_core.device.tensor import strided
from umd_core.dtypes import DType
from umd_core.errors import UmdError
from umd_core.ir import Array, TensorDesc
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.access import Access, read_url
from umd_grpc.client.program import RemoteProgram
from umd_grpc.client.remote import RemoteDevice

THREADS = 8
"""Large transfers, and whatever else has to wait, are carried by so many threads."""
_SMALL = 1 << 20
_URLS = ("grpc:", "grpcs:")
Result = TypeVar("Result")


class LoopDevice(RemoteDevice):
    """A RemoteDevice whose frames may be added, and answered, on an event loop."""

    def enter(self, size: int) -> bool:
        """Takes the session's lock if `size` bytes of frames wait for nobody; see `RemoteSession.enter`."""
        return self._session.enter(size)

    def leave(self) -> None:
        """Gives the lock back."""
        self._session.lock.release()

    @property
    def timeout(self) -> float:
        """Seconds that an answer may take."""
        return self._session.timeout

    def inline(self, size: int) -> bool:
        """Returns whether so many bytes travel in the session's own messages."""
        return size <= min(_SMALL, self._session.limits.inline_size)

    def known(self, command_buffer: CommandBuffer) -> RemoteProgram | None:
        """Returns the program of a CommandBuffer if it was loaded before."""
        found: Any = self._recent.find(command_buffer)
        return found if isinstance(found, RemoteProgram) else None

    def ask_range(self, where: Binding, receiver: Waiting) -> None:
        """Adds a frame that asks for at most 1 MiB."""
        self._session.begin()
        frame = self._ranges.read_frame(*where)
        self._session.link.answer_to(frame.seq, receiver)

    def ask_end(self, receiver: Waiting) -> None:
        """Adds a frame that is answered when everything before it has been carried out."""
        self._session.begin()
        frame = self._session.outbox.frame()
        frame.flush.SetInParent()
        self._session.link.answer_to(frame.seq, receiver)

    def send_for(self, receivers: Sequence[Waiting]) -> None:
        """Sends what has gathered; when that fails, those who wait for an answer are told."""
        try:
            self._session.round_trips += 1
            self.flush()
        except UmdError as error:
            for receiver in receivers:
                receiver.put(error)

    async def answer(self, receiver: Waiting) -> pb.Reply:
        """Returns the answer to a frame.

        Raises:
            UmdError: the frame failed, the session has ended, or no answer came in time.
        """
        link = self._session.link
        try:
            async with asyncio.timeout(self.timeout):
                found = await receiver.future
        except TimeoutError:
            raise link.late(self.timeout) from None
        return link.answer(found)


class Waiting:
    """Where the answer to one frame arrives for a coroutine.

    Attributes:
        future: is done when the answer is there. It may be cancelled: the answer is dropped then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def put(self, item: Any, /) -> None:
        """Takes the answer, on any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._set, item)

    def _set(self, item: Any) -> None:
        if not self.future.done():
            self.future.set_result(item)


class AsyncTensor:
    """An array on a remote device.

    Attributes:
        tensor: the same for threads.
    """

    __slots__ = ("_device", "tensor")

    def __init__(self, device: AsyncDevice, tensor: Tensor) -> None:
        self._device, self.tensor = device, tensor

    def __repr__(self) -> str:
        return f"Async{self.tensor!r}"

    @property
    def desc(self) -> TensorDesc:
        """Shape, element type and layout."""
        return self.tensor.desc

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents; () for a 0-d tensor."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    async def numpy(self) -> Array:
        """Returns the elements as a host array, once everything before has run.

        Raises:
            PoisonedError: the work that should have made them failed.
        """
        return await self._device.read(self)


class AsyncDevice:
    """One device of a server, through one session, for coroutines; made by `connect`.

    What coroutines ask for at one time travels in one message. Nothing keeps the event loop: small arrays and answers
    pass through it, and what may have to wait (large transfers, a program's first load, a server that has no room) is
    done by threads. A coroutine that is cancelled gives its answer up and nothing else: what it had asked for is still
    carried out, and the session goes on. Belongs to the event loop in which it was made.

    Attributes:
        name: "grpc://host:port/device".
    """

    def __init__(self, device: LoopDevice, threads: ThreadPoolExecutor) -> None:
        self._device, self._threads, self.name = device, threads, device.name
        self._loop = asyncio.get_running_loop()
        self._asked: list[Waiting] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session: the server frees everything that it made."""
        await self._in_thread(self._device.close)
        self._threads.shutdown(wait=False)

    def caps(self) -> Caps:
        """Returns what the device can do."""
        return self._device.caps()

    @property
    def round_trips(self) -> int:
        """Messages that an answer was wanted to; opening is the first."""
        return self._device.round_trips

    # work

    async def tensor(self, array: Any) -> AsyncTensor:
        """Returns a copy of a host array on the device."""
        given = np.asarray(array)
        return AsyncTensor(self, await self._do(given.nbytes, self._device.tensor, given))

    async def load(self, command_buffer: CommandBuffer) -> RemoteProgram:
        """Returns the validated program; the same object costs a look-up.

        Raises:
            DecodeError: the bytes break a rule.
            UnsupportedError: the device lacks one of its kernels.
        """
        known = self._device.known(command_buffer)
        return known if known is not None else await self._in_thread(self._device.program, command_buffer)

    async def run(self, command_buffer: CommandBuffer | RemoteProgram, inputs: Sequence[Any]) -> list[AsyncTensor]:
        """Returns the outputs of a command buffer over arrays and tensors of this device.

        Nothing is waited for until their values are read; what went wrong shows there.

        Raises:
            InputCountError, ShapeError, DTypeError: the inputs do not fit the program.
        """
        program = command_buffer if isinstance(command_buffer, RemoteProgram) else await self.load(command_buffer)
        given = [value.tensor if isinstance(value, AsyncTensor) else np.asarray(value) for value in inputs]
        size = sum(value.nbytes for value in given if isinstance(value, np.ndarray))
        if not all(map(self._as_it_is, given, program.inputs)):
            size = _SMALL + 1  # a tensor has to be read before it fits
        results = await self._do(size, self._device.run, program, given)
        return [AsyncTensor(self, tensor) for tensor in results]

    def _as_it_is(self, value: Any, wanted: TensorDesc) -> bool:
        if not isinstance(value, Tensor):
            return True
        owner: Any = value.storage.device
        return owner is self._device and value.desc == wanted

    async def read(self, tensor: AsyncTensor) -> Array:
        """Returns a tensor's elements; see `AsyncTensor.numpy`."""
        desc = tensor.desc
        if not desc.byte_size or not self._device.inline(desc.byte_size):
            return await self._in_thread(tensor.tensor.numpy)
        reply = await self._ask(self._device.ask_range, tensor.tensor.binding)
        return strided(np.frombuffer(reply.data, np.uint8), desc)

    async def synchronize(self) -> None:
        """Returns when everything asked for so far has been carried out, or has failed."""
        await self._ask(self._device.ask_end)

    async def cancel(self, *queues: int) -> None:
        """Ends what was submitted and has not ended; see `RemoteDevice.cancel`."""
        await self._do(0, self._device.cancel, *queues)

    # the loop and the threads

    async def _do(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Adds frames of `size` bytes: here, when that waits for nobody, else on a thread."""
        if self._device.inline(size) and self._device.enter(size):
            try:
                return function(*arguments)
            finally:
                self._device.leave()
        return await self._in_thread(function, *arguments)

    async def _ask(self, add: Callable[..., None], *arguments: Any) -> pb.Reply:
        """Adds a frame and returns its answer; what others add before the loop's next turn goes with it."""
        receiver = Waiting()
        await self._do(0, add, *arguments, receiver)
        if not self._asked:
            self._loop.call_soon(self._send)
        self._asked.append(receiver)
        return await self._device.answer(receiver)

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        if self._device.enter(0):
            try:
                self._device.send_for(asked)
            finally:
                self._device.leave()
        else:
            self._threads.submit(self._device.send_for, asked)

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await self._loop.run_in_executor(self._threads, functools.partial(function, *arguments))


async def connect(target: str | Access, device: str = "", **options: Any) -> AsyncDevice:
    """Opens a session from asyncio.

    Example:
        >>> async with await connect("grpc://127.0.0.1:50051/sim:0") as device:
        ...     (y,) = await device.run(command_buffer, [x])
        ...     print(await y.numpy())

    Args:
        target: the name of a device as `umd.open_device` takes it, or what `RemoteDevice` takes.
        device: a device of the server, unless the name says it; "" for its first.
        options: those of `RemoteDevice`.

    Raises:
        UmdError: there is no such device, or no server.
    """
    access: str | Access = target
    if isinstance(target, str) and target.startswith(_URLS):
        _, access, named = read_url(target)
        device = named or device
    threads = ThreadPoolExecutor(THREADS, "umd-aio")
    opening = functools.partial(LoopDevice, access, device, **options)
    try:
        opened = await asyncio.get_running_loop().run_in_executor(threads, opening)
    except BaseException:
        threads.shutdown(wait=False)
        raise
    return AsyncDevice(opened, threads)
