from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("version", "uptime_seconds", "draining", "counters", "translate_mean_us", "translate_p99_us", "devices", "identities", "sessions", "caches")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_MEAN_US_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_P99_US_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    IDENTITIES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CACHES_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_seconds: float
    draining: bool
    counters: Counters
    translate_mean_us: float
    translate_p99_us: float
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    identities: _containers.RepeatedCompositeFieldContainer[Identity]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    caches: _containers.RepeatedCompositeFieldContainer[Cache]
    def __init__(self, version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., draining: _Optional[bool] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., translate_mean_us: _Optional[float] = ..., translate_p99_us: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., identities: _Optional[_Iterable[_Union[Identity, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., caches: _Optional[_Iterable[_Union[Cache, _Mapping]]] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("ops", "failures", "submissions", "frames", "bytes_in", "bytes_out")
    OPS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    ops: int
    failures: int
    submissions: int
    frames: int
    bytes_in: int
    bytes_out: int
    def __init__(self, ops: _Optional[int] = ..., failures: _Optional[int] = ..., submissions: _Optional[int] = ..., frames: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "memory", "memory_used", "queue_depth", "epoch", "sessions", "worker_pid", "worker_restarts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    WORKER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    memory: int
    memory_used: int
    queue_depth: int
    epoch: int
    sessions: int
    worker_pid: int
    worker_restarts: int
    def __init__(self, name: _Optional[str] = ..., memory: _Optional[int] = ..., memory_used: _Optional[int] = ..., queue_depth: _Optional[int] = ..., epoch: _Optional[int] = ..., sessions: _Optional[int] = ..., worker_pid: _Optional[int] = ..., worker_restarts: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("name", "memory", "memory_quota", "sessions", "sessions_quota", "in_flight", "in_flight_quota", "ops", "ops_per_second_quota")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_QUOTA_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_QUOTA_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_QUOTA_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    OPS_PER_SECOND_QUOTA_FIELD_NUMBER: _ClassVar[int]
    name: str
    memory: int
    memory_quota: int
    sessions: int
    sessions_quota: int
    in_flight: int
    in_flight_quota: int
    ops: int
    ops_per_second_quota: int
    def __init__(self, name: _Optional[str] = ..., memory: _Optional[int] = ..., memory_quota: _Optional[int] = ..., sessions: _Optional[int] = ..., sessions_quota: _Optional[int] = ..., in_flight: _Optional[int] = ..., in_flight_quota: _Optional[int] = ..., ops: _Optional[int] = ..., ops_per_second_quota: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("number", "identity", "device", "client", "seconds", "memory", "waiting", "submissions", "detached")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    number: int
    identity: str
    device: str
    client: str
    seconds: float
    memory: int
    waiting: int
    submissions: int
    detached: bool
    def __init__(self, number: _Optional[int] = ..., identity: _Optional[str] = ..., device: _Optional[str] = ..., client: _Optional[str] = ..., seconds: _Optional[float] = ..., memory: _Optional[int] = ..., waiting: _Optional[int] = ..., submissions: _Optional[int] = ..., detached: _Optional[bool] = ...) -> None: ...

class Cache(_message.Message):
    __slots__ = ("name", "hits", "misses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    hits: int
    misses: int
    def __init__(self, name: _Optional[str] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ...) -> None: ...
