from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_UNSPECIFIED: _ClassVar[Format]
    FORMAT_V1: _ClassVar[Format]
    FORMAT_ORIGINAL: _ClassVar[Format]
FORMAT_UNSPECIFIED: Format
FORMAT_V1: Format
FORMAT_ORIGINAL: Format

class TensorDesc(_message.Message):
    __slots__ = ("name", "shape", "dtype", "strides", "element_offset", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    strides: _containers.RepeatedScalarFieldContainer[int]
    element_offset: int
    value: bytes
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., strides: _Optional[_Iterable[int]] = ..., element_offset: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class TranslateRequest(_message.Message):
    __slots__ = ("op_type", "inputs", "attributes", "request_id", "typed_attributes", "device_id", "format")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TYPED_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    op_type: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    attributes: _containers.ScalarMap[str, str]
    request_id: int
    typed_attributes: _struct_pb2.Struct
    device_id: str
    format: Format
    def __init__(self, op_type: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., attributes: _Optional[_Mapping[str, str]] = ..., request_id: _Optional[int] = ..., typed_attributes: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., device_id: _Optional[str] = ..., format: _Optional[_Union[Format, str]] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("status", "command_buffer", "kernel_name", "msg", "request_id", "outputs", "workspace_size", "format", "timing", "facts")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_BUFFER_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    status: int
    command_buffer: bytes
    kernel_name: str
    msg: str
    request_id: int
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    workspace_size: int
    format: Format
    timing: Timing
    facts: str
    def __init__(self, status: _Optional[int] = ..., command_buffer: _Optional[bytes] = ..., kernel_name: _Optional[str] = ..., msg: _Optional[str] = ..., request_id: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., workspace_size: _Optional[int] = ..., format: _Optional[_Union[Format, str]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., facts: _Optional[str] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("parse_ns", "translate_ns", "encode_ns", "cached")
    PARSE_NS_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_NS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_NS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    parse_ns: int
    translate_ns: int
    encode_ns: int
    cached: bool
    def __init__(self, parse_ns: _Optional[int] = ..., translate_ns: _Optional[int] = ..., encode_ns: _Optional[int] = ..., cached: _Optional[bool] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: _containers.RepeatedCompositeFieldContainer[TranslateRequest]
    def __init__(self, request: _Optional[_Iterable[_Union[TranslateRequest, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: _containers.RepeatedCompositeFieldContainer[TranslateResponse]
    def __init__(self, response: _Optional[_Iterable[_Union[TranslateResponse, _Mapping]]] = ...) -> None: ...
