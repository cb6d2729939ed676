from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Graph(_message.Message):
    __slots__ = ("name", "inputs", "constants", "nodes", "outputs", "fuses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    FUSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    inputs: _containers.RepeatedCompositeFieldContainer[Value]
    constants: _containers.RepeatedCompositeFieldContainer[Constant]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    fuses: bool
    def __init__(self, name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., constants: _Optional[_Iterable[_Union[Constant, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., fuses: _Optional[bool] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("name", "desc")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESC_FIELD_NUMBER: _ClassVar[int]
    name: str
    desc: TensorDesc
    def __init__(self, name: _Optional[str] = ..., desc: _Optional[_Union[TensorDesc, _Mapping]] = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Tensor
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("op", "inputs", "outputs", "attributes", "name", "source")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    OP_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    op: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    attributes: _containers.MessageMap[str, Attribute]
    name: str
    source: str
    def __init__(self, op: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., outputs: _Optional[_Iterable[str]] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., name: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("value", "desc", "alias")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DESC_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    value: str
    desc: TensorDesc
    alias: str
    def __init__(self, value: _Optional[str] = ..., desc: _Optional[_Union[TensorDesc, _Mapping]] = ..., alias: _Optional[str] = ...) -> None: ...

class TensorDesc(_message.Message):
    __slots__ = ("dtype", "shape", "strides", "element_offset")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    dtype: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    element_offset: int
    def __init__(self, dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., element_offset: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("int_value", "float_value", "bool_value", "string_value", "bytes_value", "ints", "floats", "strings", "tensor", "dtype")
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    INTS_FIELD_NUMBER: _ClassVar[int]
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    int_value: int
    float_value: float
    bool_value: bool
    string_value: str
    bytes_value: bytes
    ints: Ints
    floats: Floats
    strings: Strings
    tensor: Tensor
    dtype: int
    def __init__(self, int_value: _Optional[int] = ..., float_value: _Optional[float] = ..., bool_value: _Optional[bool] = ..., string_value: _Optional[str] = ..., bytes_value: _Optional[bytes] = ..., ints: _Optional[_Union[Ints, _Mapping]] = ..., floats: _Optional[_Union[Floats, _Mapping]] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., dtype: _Optional[int] = ...) -> None: ...

class Ints(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Floats(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class TranslateGraphRequest(_message.Message):
    __slots__ = ("graph", "device_id", "request_id", "chunk_size")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    device_id: str
    request_id: int
    chunk_size: int
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ..., device_id: _Optional[str] = ..., request_id: _Optional[int] = ..., chunk_size: _Optional[int] = ...) -> None: ...

class TranslateGraphResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("status", "message", "facts", "request_id", "size", "sha256", "inputs", "outputs", "aliases", "command_count", "workspace_size", "translate_ns", "encode_ns")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_COUNT_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_NS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_NS_FIELD_NUMBER: _ClassVar[int]
    status: int
    message: str
    facts: str
    request_id: int
    size: int
    sha256: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDesc]
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    command_count: int
    workspace_size: int
    translate_ns: int
    encode_ns: int
    def __init__(self, status: _Optional[int] = ..., message: _Optional[str] = ..., facts: _Optional[str] = ..., request_id: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDesc, _Mapping]]] = ..., aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ..., command_count: _Optional[int] = ..., workspace_size: _Optional[int] = ..., translate_ns: _Optional[int] = ..., encode_ns: _Optional[int] = ...) -> None: ...

class Alias(_message.Message):
    __slots__ = ("output", "input")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    output: int
    input: int
    def __init__(self, output: _Optional[int] = ..., input: _Optional[int] = ...) -> None: ...
