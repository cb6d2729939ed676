"""One Session call: its messages go to a session, its responses come from there."""

from __future__ import annotations

import asyncio

from umd_core.errors import UmdError


class Stream:
    """The responses of one call, until it ends.

    Attributes:
        error: why the call ends, None when its client has ended it.
    """

    def __init__(self) -> None:
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.error: UmdError | None = None

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""
        return self._responses.empty()

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
