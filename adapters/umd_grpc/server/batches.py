"""Jobs on a device's thread that move many chunks of a transfer, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from umd_grpc.server.lanes import Lane
from umd_grpc.server.moves import Moves

if TYPE_CHECKING:
    from umd_grpc.server.host import DeviceHost

Result = TypeVar("Result")


class Batches:
    """Where such jobs of one session run. Waking the thread for each chunk would cost more than moving it."""

    def __init__(self, host: DeviceHost, lane: Lane, moves: Moves) -> None:
        self._host, self._lane, self._moves = host, lane, moves

    async def run(self, job: Callable[[Moves, Callable[[], bool]], Result]) -> Result:
        """Returns what a job returns, or raises what it raises.

        It is given the session's transfers, and what says that it has to let others go on: to be asked between chunks.
        """

        def begin() -> Result:
            start = time.perf_counter()
            return job(self._moves, lambda: self._host.turn_is_over(self._lane, start))

        return await self._host.call(begin, lane=self._lane)
