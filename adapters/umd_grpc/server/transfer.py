"""Transfers of one session: bytes that travel on their own calls but have their place in the session's order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from umd_core.device import Buffer
from umd_core.errors import CancelledError, DecodeError, StaleHandleError, UmdError

REFUSED_LIMIT = 1024


@dataclass(slots=True)
class Transfer:
    """A transfer that the session's order has reached.

    Attributes:
        writes: whether the bytes go to the device.
        done: bytes that have arrived, or were read.
    """

    id: int
    seq: int
    handle: int
    buffer: Buffer
    offset: int
    size: int
    writes: bool
    done: int = 0

    def check_direction(self, *, writes: bool) -> None:
        """Checks that a call of Write or Read is the right one.

        Raises:
            DecodeError: it is the other one.
        """
        if self.writes != writes:
            raise DecodeError("transfer-direction", f"transfer {self.id} goes the other way", section="TRANSFER")


class Transfers:
    """Where the calls of Write and Read meet the transfer frames of a session. Lives on the event loop."""

    def __init__(self) -> None:
        self._reached: dict[int, Transfer] = {}
        self._refused: OrderedDict[int, UmdError] = OrderedDict()
        self._wanted: dict[int, asyncio.Future[Transfer]] = {}
        self._closed = False

    def reached(self, number: int, found: Transfer | UmdError) -> None:
        """Notes that the session's order has reached a transfer frame."""
        future = self._wanted.get(number)
        if isinstance(found, UmdError):
            if future is None:
                self._refused[number] = found
                if len(self._refused) > REFUSED_LIMIT:
                    self._refused.popitem(last=False)
            elif not future.done():
                future.set_exception(found)
        elif future is None:
            self._reached[number] = found
        elif not future.done():
            future.set_result(found)

    async def take(self, number: int, timeout: float) -> Transfer:
        """Returns a transfer, once, when the session's order reaches it.

        Raises:
            UmdError: the session refused it.
            StaleHandleError: another call has it, or the session has ended.
            CancelledError: the order did not reach it in time.
        """
        if number in self._refused:
            raise self._refused.pop(number)
        if number in self._reached:
            return self._reached.pop(number)
        if self._closed or number in self._wanted:
            raise StaleHandleError("transfer", number, "belongs to another call or to no session")
        future = self._wanted[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise CancelledError(f"transfer {number} was not begun by its session within {timeout:g} s") from None
        finally:
            del self._wanted[number]

    def drop(self, number: int) -> Transfer | None:
        """Forgets and returns a transfer that no call has taken, None when there is none."""
        return self._reached.pop(number, None)

    def close(self) -> None:
        """Ends all that wait."""
        self._closed = True
        self._reached.clear()
        for number, future in self._wanted.items():
            if not future.done():
                future.set_exception(StaleHandleError("transfer", number, "belongs to a session that has ended"))
