"""Messages of a call that are taken so that gRPC frees them, however the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Incoming:
    """The messages of a call, one of them taken ahead. Whoever waits for one may be cancelled.

    gRPC never frees a message that arrives for a receive that was cancelled: a chunk of a MiB each time that a session
    ends while its client still sends. So each receive goes on, and the last ends with the call.
    """

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self._ahead: asyncio.Future[bytes | None] | None = None

    async def next(self) -> bytes | None:
        """Returns the next message, None after the last."""
        receive = self._ahead = self._ahead or self._receive()
        found = await asyncio.shield(receive)
        self._ahead = None if found is None else self._receive()
        return found

    def _receive(self) -> asyncio.Future[bytes | None]:
        receive = asyncio.ensure_future(anext(self._messages, None))
        receive.add_done_callback(_forget)
        return receive


def _forget(receive: asyncio.Future[bytes | None]) -> None:
    """Looks at how a receive has ended: one that nobody waits for any more would be logged as missed."""
    if not receive.cancelled():
        receive.exception()
