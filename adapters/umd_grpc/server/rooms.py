"""Bytes under way of one identity: whoever has too many is not read from until some are carried out."""

from __future__ import annotations

import asyncio

from umd_grpc.server.identity import Account


class Room:
    """The room of one account for bytes under way. Lives on the event loop."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._left = asyncio.Event()
        self._chunks = 0

    async def enter(self, size: int) -> None:
        """Counts bytes, once there is room for them."""
        while not self.account.has_room(size):
            self._left.clear()
            await self._left.wait()
        self.account.take_bytes(size)

    async def enter_chunk(self, size: int) -> None:
        """Counts the bytes of a transfer's chunk: one may always come, for what fills the room may wait for it."""
        while self._chunks and not self.account.has_room(size):
            self._left.clear()
            await self._left.wait()
        self._chunks += 1
        self.account.take_bytes(size)

    def leave_chunk(self, size: int) -> None:
        """Takes back the bytes of a chunk."""
        self._chunks -= 1
        self.leave(size)

    def leave(self, size: int) -> None:
        """Takes back bytes that are carried out."""
        self.account.give_bytes(size)
        self._left.set()


class Rooms:
    """The room of each account that is in use."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}

    def of(self, account: Account) -> Room:
        """Returns an account's room."""
        room = self._rooms.get(account.identity.name)
        if room is None or room.account is not account:
            room = self._rooms[account.identity.name] = Room(account)
        return room
