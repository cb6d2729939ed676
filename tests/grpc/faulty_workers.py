"""A server whose workers do what the queue of a submission says: on 13 they never end, on 14 their device is lost.

python faulty_workers.py --listen 127.0.0.1:0        the server
python faulty_workers.py DESCRIPTOR                  its worker
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

from umd_core.device import SequentialDevice
from umd_grpc.limits import DEFAULT
from umd_grpc.server import app, submissions, work
from umd_grpc.server.settings import Settings, WorkerSettings
from umd_grpc.server.worker import launch, process

STUCK, LOST = 13, 14
WHY = "the test wants it so"


class FaultyWork(work.Work):
    """A submission that may never end, or take the device with it."""

    lost = ""

    def begin(self) -> Exception | None:
        """Does what the queue says."""
        error = super().begin()
        if self.queue == STUCK:
            threading.Event().wait()
        if self.queue == LOST:
            FaultyWork.lost = WHY
        return error


def main() -> None:
    """Runs the server, or a worker."""
    if len(sys.argv) == 2:
        work.GRACE_SECONDS = 0.1
        for where, name, what in (
            (submissions, "Work", FaultyWork),
            (SequentialDevice, "lost", property(lambda device: FaultyWork.lost)),
        ):
            setattr(where, name, what)
        process.main(sys.argv[1:])
    launch.COMMAND = (sys.executable, __file__)
    limits = replace(DEFAULT, submission_seconds=0.1)
    app.serve(Settings(listen=(sys.argv[2],), limits=limits, workers=WorkerSettings("on", 0.05)))


if __name__ == "__main__":
    main()
