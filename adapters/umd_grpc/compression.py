"""gzip of translate traffic: descriptions of ops and programs, which are mostly alike. Tensor data is never packed.

gRPC says in its own header how a message is packed, but does not show a service what its caller takes. So a call asks:
with metadata `umd-gzip: 1` it is answered with gzip.
"""

from __future__ import annotations

import os

from umd_grpc.addresses import is_local

SWITCH = "UMD_GZIP"
ASKS = ("umd-gzip", "1")
"""The metadata by which a call asks for answers with gzip."""
_SERVICES = ("/umd.Translator/", "/umd.graph.Graphs/")


def covers(method: str) -> bool:
    """Returns whether the messages of a method, "/package.Service/Method", are worth packing."""
    return method.startswith(_SERVICES)


def wanted(target: str) -> bool:
    """Returns whether a client packs what it sends to a server, and asks for packed answers.

    It does when the bytes leave this machine: on it, packing takes longer than sending. UMD_GZIP=1 or 0 says otherwise.
    """
    said = os.environ.get(SWITCH, "")
    return said != "0" if said else not is_local(target)
