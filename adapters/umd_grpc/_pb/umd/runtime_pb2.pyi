from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTION_UNSPECIFIED: _ClassVar[Direction]
    DIRECTION_WRITE: _ClassVar[Direction]
    DIRECTION_READ: _ClassVar[Direction]
DIRECTION_UNSPECIFIED: Direction
DIRECTION_WRITE: Direction
DIRECTION_READ: Direction

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("version", "format_oldest", "format_newest", "devices", "limits", "shared_memory")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_OLDEST_FIELD_NUMBER: _ClassVar[int]
    FORMAT_NEWEST_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    version: str
    format_oldest: int
    format_newest: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    limits: Limits
    shared_memory: SharedMemory
    def __init__(self, version: _Optional[str] = ..., format_oldest: _Optional[int] = ..., format_newest: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "memory", "max_work", "max_program_size", "flags", "kernels", "epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_WORK_FIELD_NUMBER: _ClassVar[int]
    MAX_PROGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    memory: int
    max_work: int
    max_program_size: int
    flags: _containers.RepeatedScalarFieldContainer[str]
    kernels: _containers.RepeatedCompositeFieldContainer[KernelSupport]
    epoch: int
    def __init__(self, name: _Optional[str] = ..., memory: _Optional[int] = ..., max_work: _Optional[int] = ..., max_program_size: _Optional[int] = ..., flags: _Optional[_Iterable[str]] = ..., kernels: _Optional[_Iterable[_Union[KernelSupport, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("address", "size")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    address: bytes
    size: int
    def __init__(self, address: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class KernelSupport(_message.Message):
    __slots__ = ("name", "every", "types")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    name: str
    every: bool
    types: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., every: _Optional[bool] = ..., types: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_size", "inline_size", "chunk_size", "transfer_size", "frame_count", "handle_count", "wait_count")
    MESSAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    INLINE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    HANDLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    message_size: int
    inline_size: int
    chunk_size: int
    transfer_size: int
    frame_count: int
    handle_count: int
    wait_count: int
    def __init__(self, message_size: _Optional[int] = ..., inline_size: _Optional[int] = ..., chunk_size: _Optional[int] = ..., transfer_size: _Optional[int] = ..., frame_count: _Optional[int] = ..., handle_count: _Optional[int] = ..., wait_count: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("seq", "open", "allocate", "free", "load", "submit", "wait", "read", "write", "transfer", "flush", "signal", "cancel", "close", "spoil")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SPOIL_FIELD_NUMBER: _ClassVar[int]
    seq: int
    open: Open
    allocate: Allocate
    free: Free
    load: Load
    submit: Submit
    wait: Wait
    read: ReadRange
    write: WriteRange
    transfer: Transfer
    flush: Flush
    signal: FenceValue
    cancel: Cancel
    close: Close
    spoil: Spoil
    def __init__(self, seq: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., allocate: _Optional[_Union[Allocate, _Mapping]] = ..., free: _Optional[_Union[Free, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., read: _Optional[_Union[ReadRange, _Mapping]] = ..., write: _Optional[_Union[WriteRange, _Mapping]] = ..., transfer: _Optional[_Union[Transfer, _Mapping]] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., signal: _Optional[_Union[FenceValue, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., spoil: _Optional[_Union[Spoil, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("device", "protocol", "client", "lease_seconds", "resume", "priority")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    device: str
    protocol: int
    client: str
    lease_seconds: int
    resume: bytes
    priority: int
    def __init__(self, device: _Optional[str] = ..., protocol: _Optional[int] = ..., client: _Optional[str] = ..., lease_seconds: _Optional[int] = ..., resume: _Optional[bytes] = ..., priority: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("seqs", "queues")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    queues: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., queues: _Optional[_Iterable[int]] = ...) -> None: ...

class Spoil(_message.Message):
    __slots__ = ("buffers", "offsets", "sizes", "signals", "reason")
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    signals: _containers.RepeatedCompositeFieldContainer[FenceValue]
    reason: str
    def __init__(self, buffers: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., signals: _Optional[_Iterable[_Union[FenceValue, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Allocate(_message.Message):
    __slots__ = ("handles", "sizes")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Free(_message.Message):
    __slots__ = ("buffers", "programs", "fences")
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[int]
    programs: _containers.RepeatedScalarFieldContainer[int]
    fences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, buffers: _Optional[_Iterable[int]] = ..., programs: _Optional[_Iterable[int]] = ..., fences: _Optional[_Iterable[int]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("handle", "program", "sha256")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    handle: int
    program: bytes
    sha256: bytes
    def __init__(self, handle: _Optional[int] = ..., program: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("program", "queue", "buffers", "offsets", "sizes", "values", "waits", "signals", "reply", "priority", "deadline_ms", "profile")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    program: int
    queue: int
    buffers: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    waits: _containers.RepeatedCompositeFieldContainer[FenceValue]
    signals: _containers.RepeatedCompositeFieldContainer[FenceValue]
    reply: bool
    priority: int
    deadline_ms: int
    profile: bool
    def __init__(self, program: _Optional[int] = ..., queue: _Optional[int] = ..., buffers: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[int]] = ..., waits: _Optional[_Iterable[_Union[FenceValue, _Mapping]]] = ..., signals: _Optional[_Iterable[_Union[FenceValue, _Mapping]]] = ..., reply: _Optional[bool] = ..., priority: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., profile: _Optional[bool] = ...) -> None: ...

class FenceValue(_message.Message):
    __slots__ = ("fence", "value")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    value: int
    def __init__(self, fence: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("fence", "timeout_ms")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    fence: FenceValue
    timeout_ms: int
    def __init__(self, fence: _Optional[_Union[FenceValue, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ReadRange(_message.Message):
    __slots__ = ("buffer", "offset", "size")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    size: int
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class WriteRange(_message.Message):
    __slots__ = ("buffer", "offset", "data")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    data: bytes
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("id", "direction", "buffer", "offset", "size", "sha256")
    ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    id: int
    direction: Direction
    buffer: int
    offset: int
    size: int
    sha256: bytes
    def __init__(self, id: _Optional[int] = ..., direction: _Optional[_Union[Direction, str]] = ..., buffer: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("replies", "processed_through", "completed_through", "credit", "device_epoch")
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    processed_through: int
    completed_through: _containers.RepeatedCompositeFieldContainer[QueueProgress]
    credit: int
    device_epoch: int
    def __init__(self, replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ..., processed_through: _Optional[int] = ..., completed_through: _Optional[_Iterable[_Union[QueueProgress, _Mapping]]] = ..., credit: _Optional[int] = ..., device_epoch: _Optional[int] = ...) -> None: ...

class QueueProgress(_message.Message):
    __slots__ = ("queue", "seq")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    queue: int
    seq: int
    def __init__(self, queue: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("seq", "opened", "data", "done", "error", "profile")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    opened: Opened
    data: bytes
    done: Done
    error: Error
    profile: _containers.RepeatedCompositeFieldContainer[CommandTime]
    def __init__(self, seq: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., data: _Optional[bytes] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., profile: _Optional[_Iterable[_Union[CommandTime, _Mapping]]] = ...) -> None: ...

class CommandTime(_message.Message):
    __slots__ = ("command", "nanoseconds", "kernel")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    command: int
    nanoseconds: int
    kernel: str
    def __init__(self, command: _Optional[int] = ..., nanoseconds: _Optional[int] = ..., kernel: _Optional[str] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "device", "limits", "resume", "lease_seconds", "resumed", "processed_through")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    device: str
    limits: Limits
    resume: bytes
    lease_seconds: int
    resumed: bool
    processed_through: int
    def __init__(self, session: _Optional[bytes] = ..., device: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., resume: _Optional[bytes] = ..., lease_seconds: _Optional[int] = ..., resumed: _Optional[bool] = ..., processed_through: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("status", "message", "facts")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    status: int
    message: str
    facts: str
    def __init__(self, status: _Optional[int] = ..., message: _Optional[str] = ..., facts: _Optional[str] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("session", "transfer", "offset", "crc32", "data", "abandon")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    transfer: int
    offset: int
    crc32: int
    data: bytes
    abandon: bool
    def __init__(self, session: _Optional[bytes] = ..., transfer: _Optional[int] = ..., offset: _Optional[int] = ..., crc32: _Optional[int] = ..., data: _Optional[bytes] = ..., abandon: _Optional[bool] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("size", "error")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    size: int
    error: Error
    def __init__(self, size: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session", "transfer", "offset", "hold")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    transfer: int
    offset: int
    hold: bool
    def __init__(self, session: _Optional[bytes] = ..., transfer: _Optional[int] = ..., offset: _Optional[int] = ..., hold: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("offset", "crc32", "data", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc32: int
    data: bytes
    error: Error
    def __init__(self, offset: _Optional[int] = ..., crc32: _Optional[int] = ..., data: _Optional[bytes] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
