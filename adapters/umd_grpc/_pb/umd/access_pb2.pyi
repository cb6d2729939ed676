from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("token", "name", "devices")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    token: str
    name: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[str] = ..., name: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...
