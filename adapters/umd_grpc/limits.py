"""What one client may ask for, in bytes unless it counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server.

    Attributes:
        message: one message of any call.
        frame: one session frame that is not a program or a write.
        inline: one inline read or write.
        chunk: one message of Write and Read.
        transfer: one transfer.
        frames: frames in a message.
        handles: handle ids of each kind in a session.
        waits: submissions and wait frames that wait at one time in a session.
        credit: unprocessed messages of a session, beyond which the server stops reading.
        unread: replies that a client has not taken yet, beyond which its session stands still.
        stall_seconds: how long a transfer may stand still.
        half_closed_seconds: the same, when the client has sent its last message and no call has taken the transfer.
        queues: queues of a session with a lease.
        lease_seconds: the longest that a session may outlive its stream.
        submission_seconds: the longest that one submission may run, 0 for no limit.
        look_seconds: between looks at work that a device does in the background.
    """

    message: int = 64 << 20
    frame: int = 2 << 20
    inline: int = 1 << 20
    chunk: int = 1 << 20
    transfer: int = 256 << 20
    frames: int = 65_536
    handles: int = 1 << 20
    waits: int = 1_024
    credit: int = 16 << 20
    unread: int = 8 << 20
    stall_seconds: float = 30.0
    half_closed_seconds: float = 0.25
    queues: int = 4_096
    lease_seconds: int = 300
    submission_seconds: float = 300.0
    look_seconds: float = 0.001


DEFAULT = Limits()
