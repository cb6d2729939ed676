"""The client's side of Write and Read: bytes on a channel of their own, or through shared memory."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import numpy as np

from umd_core.errors import CancelledError, DecodeError, DeviceLostError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.channel import call_error
from umd_grpc.client.placed import Placed
from umd_grpc.client.shared_memory import Share, ShareLostError
from umd_grpc.messages.chunks import Chunk, parse_read_response, write_request
from umd_grpc.messages.convert import read_error

_WRITE, _READ = "/umd.runtime.Runtime/Write", "/umd.runtime.Runtime/Read"
KEPT = 16 << 20
"""Bytes of a write up to which its messages are kept until the server has them, so that nobody waits for that."""
_EVER_FREED = 16 << 20
TRIES = 5
_CLOSED = "it was closed"
_PAUSE_SECONDS, _LEAVE_SECONDS = 0.05, 5.0
_BROKEN = frozenset(
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
)
"""How calls end that another one may continue."""
_GOES_ON = (CancelledError, DecodeError)
"""What the server says of a call that another one may continue: it ended early, or brought damaged bytes."""
Result = TypeVar("Result")
Source = Callable[[int], Iterator[bytes]]
"""Returns the messages of a write from a byte on, the names of session and transfer left out."""


@functools.cache
def _keep_freed_memory() -> None:
    """Has the C library keep memory of the size of messages when it is freed, for the next ones.

    Fresh pages for each of them cost as much as everything else that is done with its bytes. glibc keeps what is not
    larger than the largest piece that was ever freed: so one is made, which takes no memory, and freed.
    """
    np.empty(_EVER_FREED, np.uint8)


class _RefusedError(Exception):
    """The server has ended a write. It says so to whoever uses the range, which is poisoned."""


class Bulk:
    """Transfers of one session. A call that breaks, or meets a damaged chunk, is continued by another one.

    Attributes:
        bytes_up, bytes_down: bytes of messages, or moved through shared memory.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        name: str,
        session: bytes,
        chunk: int,
        *,
        alive: Callable[[], bool] = lambda: True,
        share: Share | None = None,
    ) -> None:
        """Carries the transfers of a session.

        Args:
            channel: for these calls alone.
            name: names the device in errors.
            session: its token.
            chunk: the most bytes of data in one message.
            alive: whether the session goes on: no call is continued without it.
            share: memory shared with the server.
        """
        self._name, self._session, self._chunk, self._alive, self._share = name, session, chunk, alive, share
        self._write: Any = channel.stream_unary(_WRITE)
        self._read: Any = channel.unary_stream(_READ)
        self._last: set[Any] = set()
        self._helper = ThreadPoolExecutor(1, f"umd-{name}-chunks")
        self._closed = False
        self.bytes_up = self.bytes_down = 0

    def close(self) -> None:
        """Gives back the memory that is shared, and ends the thread. What is under way ends with DeviceLostError."""
        self._closed = True
        self._helper.shutdown(wait=False)
        if self._share is not None:
            self._share.close()

    # to the device

    def write(self, transfer: int, data: memoryview, timeout: float) -> None:
        """Sends the bytes of a transfer; returns when `data` is no longer needed.

        That is when the server has them; up to KEPT bytes may still be on their way. What the server finds wrong shows
        where it matters: it poisons the range.

        Raises:
            UmdError: calls that failed again and again.
        """
        if not self._shared_write(transfer, data, timeout):
            with suppress(_RefusedError):  # the frame of the transfer is answered with the reason
                self._streamed_write(transfer, data, timeout)

    def _streamed_write(self, transfer: int, data: memoryview, timeout: float) -> None:
        _keep_freed_memory()
        deadline = time.monotonic() + timeout
        kept: list[bytes] = []
        taken = threading.Event()

        def messages() -> Iterator[bytes]:
            try:
                for raw in self._messages(data, 0):
                    if len(data) <= KEPT:
                        kept.append(raw)
                    yield raw
            finally:
                taken.set()

        call = self._call(transfer, messages(), timeout)
        call.add_done_callback(lambda _: taken.set())
        taken.wait(timeout)
        if len(kept) * self._chunk < len(data):
            self._carry(transfer, len(data), lambda start: self._messages(data, start), call, deadline)
        else:
            source = _again(kept, self._chunk)
            call.add_done_callback(lambda done: self._carry_later(transfer, len(data), source, done, deadline))

    def _messages(self, data: memoryview, start: int) -> Iterator[bytes]:
        """Yields the messages from a byte on; each is made while the one before is sent."""
        ahead: Future[bytes] | None = None
        for at in range(start, len(data), self._chunk):
            try:
                made, ahead = ahead, self._ahead(write_request, b"", 0, at, data[at : at + self._chunk])
            except DeviceLostError:  # whoever waits for the call hears it: raised here it would only be logged
                return
            if made is not None:
                yield made.result()
        if ahead is not None:
            yield ahead.result()

    def _call(self, transfer: int, messages: Iterator[bytes], timeout: float) -> Any:
        """Begins a call. Its first message is the one that names the transfer, and the first of the others, merged."""
        head = self._head(transfer)

        def named() -> Iterator[bytes]:
            first = head
            for raw in messages:
                whole = first + raw if first else raw
                first = b""
                self.bytes_up += len(whole)
                yield whole

        return self._begin(self._write.future, named(), timeout)

    def _ahead(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Has the helper call a function.

        Raises:
            DeviceLostError: there is no helper any more: the device was closed meanwhile.
        """
        try:
            return self._helper.submit(function, *arguments)
        except RuntimeError as error:
            raise DeviceLostError(self._name, _CLOSED) from error

    def _begin(self, method: Callable[..., Any], request: Any, timeout: float) -> Any:
        """Begins a call.

        Raises:
            DeviceLostError: the channel is closed: the device was closed meanwhile.
        """
        try:
            return method(request, timeout=timeout)
        except ValueError as error:
            raise DeviceLostError(self._name, _CLOSED) from error

    def _error(self, error: grpc.RpcError | grpc.FutureCancelledError) -> UmdError:
        """Returns what the failure of a call means: when the channel is closed, gRPC says that it was cancelled."""
        if self._closed:
            return DeviceLostError(self._name, _CLOSED)
        if isinstance(error, grpc.RpcError):
            return call_error(error, self._name)
        return CancelledError(f"{self._name}: the call was cancelled")

    def _head(self, transfer: int, **fields: Any) -> bytes:
        return pb.WriteRequest(session=self._session, transfer=transfer, **fields).SerializeToString()

    def _carry(self, transfer: int, size: int, source: Source, call: Any, deadline: float) -> None:
        """Returns when the server has all bytes; `call` is the first that brings them."""
        done, tries = 0, TRIES
        try:
            while (found := self._outcome(call)[0]) != size:
                tries = TRIES if found > done else tries - 1
                done = max(done, found)
                done = self._ask(transfer, tries, deadline)
                call = self._call(transfer, source(done), max(0.1, deadline - time.monotonic()))
        except BaseException:
            self._leave(self._write.future, iter([self._head(transfer, abandon=True)]))
            raise

    def _carry_later(self, transfer: int, size: int, source: Source, call: Any, deadline: float) -> None:
        """Sees to it that the bytes of a call that has ended arrive."""

        def carry() -> None:
            with suppress(UmdError, _RefusedError):  # the server has poisoned the range, or the session is gone
                self._carry(transfer, size, source, call, deadline)

        if call.code() is not grpc.StatusCode.OK or pb.WriteResponse.FromString(call.result()).size != size:
            threading.Thread(target=carry, name=f"umd-{self._name}-write", daemon=True).start()

    def _outcome(self, call: Any) -> tuple[int, UmdError | None]:
        """Returns how far a transfer is after a call, and what stopped the call if another one may go on.

        Raises:
            UmdError: none may.
            _RefusedError: the server has ended the transfer.
        """
        try:
            response = pb.WriteResponse.FromString(call.result())
        except grpc.RpcError as error:
            if error.code() not in _BROKEN:
                raise self._error(error) from error
            return -1, self._error(error)
        except grpc.FutureCancelledError as error:
            return -1, self._error(error)
        if not response.HasField("error"):
            return response.size, None
        found = read_error(response.error.status, response.error.message, response.error.facts)
        if not isinstance(found, _GOES_ON):
            raise _RefusedError from found
        return response.size, found

    def _ask(self, transfer: int, tries: int, deadline: float) -> int:
        """Returns how far a transfer is, that a call has left.

        Raises:
            UmdError: nothing answers.
            _RefusedError: the server has ended the transfer.
        """
        while True:
            time.sleep(_PAUSE_SECONDS)
            left = max(0.1, deadline - time.monotonic())
            call = self._begin(self._write.future, iter([self._head(transfer)]), left)
            done, error = self._outcome(call)
            if error is None:
                return done
            if done >= 0:
                raise _RefusedError from error
            tries -= 1
            if tries <= 0 or not self._alive() or time.monotonic() > deadline:
                raise error

    # from the device

    def read(self, transfer: int, into: memoryview, timeout: float) -> None:
        """Fills `into` with the bytes of a transfer.

        Raises:
            UmdError: what the server found, bytes that were damaged again and again, or calls that failed.
        """
        done, tries, deadline, over = 0, TRIES, time.monotonic() + timeout, False
        try:
            over = self._shared_read(transfer, into, timeout)
            if over:
                return
            _keep_freed_memory()
            while True:
                before = done
                done, error = self._fill(transfer, into, done, max(0.1, deadline - time.monotonic()))
                if done == len(into):
                    return
                tries = TRIES if done > before else tries - 1
                if tries <= 0 or not self._alive() or time.monotonic() > deadline:
                    raise error
                time.sleep(_PAUSE_SECONDS)
        finally:  # the server keeps the transfer for another call, until it hears that none will come
            if not over:
                end = pb.ReadRequest(session=self._session, transfer=transfer, offset=len(into))
                self._leave(self._read, end.SerializeToString())

    def _fill(self, transfer: int, into: memoryview, done: int, timeout: float) -> tuple[int, UmdError]:
        """Returns how many bytes have come after a call, and what stopped it before there were more.

        Raises:
            UmdError: what the server found.
        """
        request = pb.ReadRequest(session=self._session, transfer=transfer, offset=done, hold=True)
        call = self._begin(self._read, request.SerializeToString(), timeout)
        placed = Placed(self._ahead, into, done)
        try:
            for raw in call:
                self.bytes_down += len(raw)
                chunk = parse_read_response(raw)
                if not isinstance(chunk, Chunk):
                    break
                placed.add(chunk)
            else:
                done = placed.settle()
                short = DecodeError("chunk-order", f"{done} of {len(into)} bytes came", offset=done, section="TRANSFER")
                return done, short
        except grpc.RpcError as error:
            if error.code() not in _BROKEN:
                raise self._error(error) from error
            with suppress(DecodeError):  # the last chunk was damaged: it is asked for again as well
                placed.settle()
            return placed.done, self._error(error)
        except DecodeError as error:
            call.cancel()
            return placed.done, error
        finally:
            placed.leave()
        raise read_error(chunk.status, chunk.message, chunk.facts)

    def _leave(self, method: Callable[..., Any], request: Any) -> None:
        """Makes a call that nobody waits for; it is held until it has ended."""
        with suppress(DeviceLostError):  # the session has ended as well
            call = self._begin(method, request, _LEAVE_SECONDS)
            self._last.add(call)
            call.add_done_callback(self._last.discard)

    # through shared memory

    def _shared_write(self, transfer: int, data: memoryview, timeout: float) -> bool:
        if self._share is None or not self._share.begin(len(data)):
            return False
        try:
            self._share.write(transfer, data, timeout)
        except ShareLostError:  # the stream goes on from where the server is
            return False
        except UmdError:  # the server says so to whoever uses the range
            self._leave(self._write.future, iter([self._head(transfer, abandon=True)]))
        except BaseException:
            self._leave(self._write.future, iter([self._head(transfer, abandon=True)]))
            raise
        self.bytes_up += len(data)
        return True

    def _shared_read(self, transfer: int, into: memoryview, timeout: float) -> bool:
        if self._share is None or not self._share.begin(len(into)):
            return False
        try:
            self._share.read(transfer, into, timeout)
        except ShareLostError:
            return False
        self.bytes_down += len(into)
        return True


def _again(messages: Sequence[bytes], chunk: int) -> Source:
    """Returns kept messages from a byte on. The server has whole chunks, so each begins where one of them ends."""
    return lambda start: iter(messages[start // chunk :])
