"""A client of the original protocol, for a process of its own: `original_client.py ADDRESS`.

Its generated modules are on the path. It prints one JSON object with what it got.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import grpc

pb = importlib.import_module("original_pb2")
stubs = importlib.import_module("original_pb2_grpc")


def request(op: str, shapes: Any, attributes: dict[str, str] | None = None, number: int = 0) -> Any:
    inputs = [pb.TensorDesc(name=f"t{i}", shape=shape, dtype="torch.float32") for i, shape in enumerate(shapes)]
    return pb.TranslateRequest(op_type=op, inputs=inputs, attributes=attributes or {}, request_id=number)


def facts(response: Any) -> dict[str, Any]:
    return {
        "status": response.status,
        "command_buffer": response.command_buffer.hex(),
        "kernel_name": response.kernel_name,
        "msg": response.msg,
    }


def main(address: str) -> None:
    found: dict[str, Any] = {}
    with grpc.insecure_channel(address) as channel:
        stub = stubs.TranslatorStub(channel)
        found["add"] = facts(stub.Translate(request("Add", [(32, 64), (32, 64)]), timeout=30))
        found["matmul"] = facts(stub.Translate(request("MatMul", [(4, 8), (8, 16)]), timeout=30))
        found["relu"] = facts(stub.Translate(request("Relu", [(5,)]), timeout=30))
        found["unknown"] = facts(stub.Translate(request("Frobnicate", [(5,)]), timeout=30))
        images = [(1, 3, 8, 8), (4, 3, 3, 3)]
        spellings = {
            "plain": ("Conv", {"strides": "1,1", "pads": "1,1"}),
            "single": ("Conv2d", {"stride": "1", "pad": "1"}),
            "brackets": ("Conv2D", {"stride": "[1, 1]", "pad": "[1, 1]"}),
            "parentheses": ("Conv2d", {"strides": "(1, 1)", "pad": "(1, 1)"}),
            "onnx": ("Conv", {"strides": "1,1", "pads": "1,1,1,1"}),
        }
        found["convolutions"] = {
            name: facts(stub.Translate(request(op, images, attributes), timeout=30))
            for name, (op, attributes) in spellings.items()
        }
        batch = [request("Add", [(i + 1,), (i + 1,)], number=i) for i in range(50)]
        batch.insert(10, request("Nope", [(1,)]))
        answers = stub.SubmitBatch((pb.SubmitRequest(request=item) for item in batch), timeout=30)
        found["batch"] = [facts(answer.response) for answer in answers]
    print(json.dumps(found))


main(sys.argv[1])
