"""The server process of a soak, and what a process has at one moment."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from umd_grpc.client import Client

MEBIBYTE = 1 << 20
SEGMENTS = "/memfd:", "/dev/shm/"
"""How the name of shared memory begins, as /proc tells it: of regions that clients were given, and of any other."""


@dataclass(frozen=True)
class Sample:
    """A process at one moment.

    Attributes:
        rss, shared: bytes of resident, and of shared memory.
        threads, files: how many it has, the latter open.
        segments: of shared memory that it has mapped, or open.
    """

    rss: int
    shared: int
    threads: int
    files: int
    segments: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        """Returns a sample of a process."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "RssShmem", "Threads")}
        files = list[str]()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile: the one that lists them is
                files.append(str(descriptor.readlink()))
        mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        segments = sum(name.startswith(SEGMENTS) for name in (*files, *mapped))
        return cls(kib["VmRSS"] << 10, kib["RssShmem"] << 10, kib["Threads"], len(files), segments)

    def since(self, before: Sample) -> dict[str, int]:
        """Returns how much more there is of everything than before."""
        return {key: value - getattr(before, key) for key, value in asdict(self).items()}


class Server:
    """A server process of a soak."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0", "--device", "sim:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.faults: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["listen"][0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if '"internal_error"' in line or not line.startswith("{"):
                self.faults.append(line.strip())

    def sample(self) -> Sample:
        """Returns a sample of it."""
        return Sample.of(self.process.pid)

    def state(self) -> Any:
        """Returns its own account of itself."""
        with Client(self.address) as client:
            return next(client.watch(0))

    def settle(self, seconds: float = 20.0) -> bool:
        """Returns whether every session ends and every byte comes back in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state()
            if not state.sessions and not any(i.memory or i.sessions or i.in_flight for i in state.identities):
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def stop(self) -> int:
        """Ends it as an operator does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def served(*arguments: str) -> Generator[Server]:
    """A server for a while."""
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.close()
