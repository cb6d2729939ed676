"""One Session call: its messages go to a session, its responses come from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from umd_core.errors import UmdError


class Stream:
    """One call, until it ends.

    Attributes:
        error: why the call ends, None when its client has ended it.
    """

    def __init__(self) -> None:
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._receiving = self._left = False
        self.error: UmdError | None = None

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""
        return self._responses.empty()

    async def receive(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """Returns the next message; None after the last, or when the call is left."""
        self._receiving = True
        try:
            raw = await anext(messages, None)
        except Exception:
            if self._left:  # whatever became of the call, nobody waits for its messages
                return None
            raise
        finally:
            self._receiving = False
        return None if self._left else raw

    def leave(self, reader: asyncio.Task[None]) -> None:
        """Ends the task that reads the call's messages.

        gRPC never frees a message that arrives for a receive that was cancelled, so that one ends with the call.
        """
        self._left = True
        if not self._receiving:
            reader.cancel()

    @property
    def left(self) -> bool:
        """Whether the call is over."""
        return self._left

    def put(self, response: bytes) -> None:
        """Adds a response."""
        self._responses.put_nowait(response)

    async def get(self) -> bytes | None:
        """Returns the next response; None when the call is to end."""
        return await self._responses.get()

    def end(self, error: UmdError | None = None) -> None:
        """Ends the call once what there is to say is said."""
        self.error = self.error or error
        self._responses.put_nowait(None)

    def drop(self) -> int:
        """Forgets what nobody will take; returns how many bytes that was."""
        size = 0
        while not self._responses.empty():
            size += len(self._responses.get_nowait() or b"")
        return size
