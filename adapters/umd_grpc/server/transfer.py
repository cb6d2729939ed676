"""Transfers of one session: bytes that travel on their own calls but have their place in the session's order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from umd_core.errors import CancelledError, DecodeError, StaleHandleError, UmdError

if TYPE_CHECKING:
    from umd_grpc.server.weights import Keeper

REMEMBERED = 1024
Result = TypeVar("Result")


@dataclass(slots=True)
class Transfer:
    """A transfer that the session's order has reached, as the event loop sees it.

    Attributes:
        size: bytes in all.
        writes: whether the bytes go to the device.
        sha256: of the bytes, when the server may have them; else b"".
        done: bytes that have arrived, or were given.
        begun: whether a call has carried it.
    """

    id: int
    size: int
    writes: bool
    sha256: bytes = b""
    done: int = 0
    begun: bool = False

    def check_direction(self, *, writes: bool) -> None:
        """Checks that a call of Write or Read is the right one.

        Raises:
            DecodeError: it is the other one.
        """
        if self.writes != writes:
            raise DecodeError("transfer-direction", f"transfer {self.id} goes the other way", section="TRANSFER")


class Carrier:
    """What carries a transfer: a call, a connection of shared memory, or the server itself.

    Attributes:
        ended: why it carries the transfer no more.
    """

    def __init__(self, *, yields: bool = True) -> None:
        """`yields` says whether it lets another one take over."""
        self.yields = yields
        self.ended: UmdError | None = None
        self._task: asyncio.Task[Any] | None = None

    async def step(self, function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
        """Returns what a function of the other end returns: it may take for ever, and is given up in `end`.

        Raises:
            UmdError: the reason why it was ended.
        """
        if self.ended is not None:
            raise self.ended
        self._task = task = asyncio.current_task()
        try:
            return await function(*arguments)
        except asyncio.CancelledError:
            if self.ended is None or task is None:
                raise
            task.uncancel()
            raise self.ended from None
        finally:
            self._task = None

    def end(self, error: UmdError) -> None:
        """Takes the transfer away from it."""
        if self.ended is None:
            self.ended = error
            if self._task is not None:
                self._task.cancel()


class Transfers:
    """Where the calls of Write and Read meet the transfer frames of a session. Lives on the event loop.

    One carrier has a transfer at a time. A newer one takes it over: the older may be a call over a connection that is
    gone without a word.

    Attributes:
        keepers: what keeps the bytes of transfers as weights, by id.
    """

    def __init__(self) -> None:
        self._open: dict[int, Transfer] = {}
        self._carriers: dict[int, Carrier] = {}
        self._over: OrderedDict[int, Transfer | UmdError] = OrderedDict()
        self._wanted: dict[int, list[asyncio.Future[None]]] = {}
        self.keepers: dict[int, Keeper] = {}
        self._closed = False

    def reached(self, number: int, found: Transfer | UmdError) -> None:
        """Notes that the session's order has reached a transfer frame."""
        self._over.pop(number, None)
        if isinstance(found, UmdError):
            self._remember(number, found)
        else:
            self._open[number] = found
        self._wake(number)

    def hold(self, number: int) -> Carrier:
        """Lets the server itself carry a transfer; others wait until it is released."""
        carrier = self._carriers[number] = Carrier(yields=False)
        return carrier

    async def take(self, number: int, timeout: float, *, writes: bool) -> tuple[Transfer, Carrier]:
        """Returns a transfer when the session's order reaches it, or when it is over; and who carries it now.

        Raises:
            UmdError: the session refused it, or it has failed.
            DecodeError: it goes the other way.
            StaleHandleError: the session has ended.
            CancelledError: the order did not reach it in time.
        """
        try:
            async with asyncio.timeout(timeout):
                while (taken := self._take(number, writes)) is None:
                    await self._changed(number)
        except TimeoutError:
            raise CancelledError(f"transfer {number} was not begun by its session within {timeout:g} s") from None
        return taken

    def _take(self, number: int, writes: bool) -> tuple[Transfer, Carrier] | None:
        found = self._over.get(number) or self._open.get(number)
        if isinstance(found, UmdError):
            raise found
        if self._closed:
            raise _no_session(number)
        if found is None:
            return None
        found.check_direction(writes=writes)
        carrier = self._carriers.get(number)
        if carrier is not None:
            if carrier.yields:
                carrier.end(StaleHandleError("transfer", number, "was taken over by another call"))
            return None
        carrier = Carrier()
        if number in self._open:
            found.begun, self._carriers[number] = True, carrier
        return found, carrier

    async def _changed(self, number: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.setdefault(number, []).append(future)
        await future

    def _wake(self, number: int) -> None:
        for future in self._wanted.pop(number, ()):
            if not future.done():
                future.set_result(None)

    def release(self, number: int, carrier: Carrier) -> None:
        """Says that a carrier has let go of a transfer."""
        if carrier.ended is not None:  # it was raised in frames that hold bytes, and the carrier: a cycle
            carrier.ended.__traceback__ = carrier.ended.__context__ = None
        if self._carriers.get(number) is carrier:
            del self._carriers[number]
            self._wake(number)

    def end(self, number: int, error: UmdError | None = None) -> None:
        """Notes that a transfer is over, well or badly."""
        transfer = self._open.pop(number, None)
        if transfer is not None:
            self._remember(number, error or transfer)
        carrier = self._carriers.get(number)
        if carrier is not None and error is not None:
            carrier.end(error)
        keeper = self.keepers.pop(number, None) if error is not None else None
        if keeper is not None:
            keeper.drop()
        self._wake(number)

    def _remember(self, number: int, found: Transfer | UmdError) -> None:
        self._over[number] = found
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def untaken(self) -> list[Transfer]:
        """Returns the transfers that nothing has begun to carry."""
        return [transfer for transfer in self._open.values() if not transfer.begun]

    def close(self) -> None:
        """Ends all that wait."""
        self._closed = True
        self._open.clear()
        self._over.clear()
        for number, carrier in list(self._carriers.items()):
            carrier.end(_no_session(number))
        for number in list(self._wanted):
            self._wake(number)
        for keeper in self.keepers.values():
            keeper.drop()
        self.keepers.clear()


def _no_session(number: int) -> StaleHandleError:
    return StaleHandleError("transfer", number, "belongs to a session that has ended")
