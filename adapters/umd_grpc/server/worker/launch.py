"""Starting a worker's process, and what its end means."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from umd_grpc.server.worker.pipe import Pipe

COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "umd_grpc.server.worker.process")
"""Starts a worker; the descriptor of its end of the pipe is added."""
END_SECONDS, KILL_SECONDS = 15.0, 10.0
_STDERR = 2


class Launched:
    """A worker's process, and the pipe to it.

    Attributes:
        pid: of the process.
        pipe: this end.
    """

    def __init__(self) -> None:
        """Starts it. It sees the same modules, is in a process group of its own, and has no other descriptor of ours.

        Raises:
            OSError: the system gives no more processes or descriptors.
        """
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        self.pid, self.pipe = self._process.pid, Pipe(ours)

    def kill(self) -> None:
        """Ends the process at once."""
        with suppress(ProcessLookupError):  # it has ended
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Returns whether the process has ended, waiting for it that long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> str:
        """Sees to it that the process is gone, and returns how it ended."""
        if not self.wait(1.0):  # its end of the pipe is closed, and it goes on
            self.kill()
            self.wait(KILL_SECONDS)
        self.pipe.close()
        return ending(self._process.returncode)


def ending(code: int | None) -> str:
    """Returns in words how a process ended, by its return code as `subprocess` has it."""
    if code is None:
        return "it cannot be killed"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
