"""The Access service: a one-time token in, a lasting one out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from umd_core.errors import NotAuthorisedError
from umd_grpc._pb.umd import access_pb2 as pb
from umd_grpc.server.authenticate import shown_token
from umd_grpc.server.entries import digest
from umd_grpc.server.report import log
from umd_grpc.server.throttle import Throttle, peer_name
from umd_grpc.server.tokens import TokenFile

SERVICE = pb.DESCRIPTOR.services_by_name["Access"].full_name


class AccessService:
    """Lets those join who have a one-time token. Whatever they send is not read: everybody may call this."""

    def __init__(self, file: TokenFile, throttle: Throttle) -> None:
        self._file, self._throttle = file, throttle

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add. As a stream's, its handler begins before a message has come."""
        method: Any = grpc.stream_stream_rpc_method_handler(self.join, None, pb.JoinResponse.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, {"Join": method})

    async def join(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answers with the lasting token."""
        peer = peer_name(context.peer())
        try:
            self._throttle.check(peer, "")
            secret = shown_token(context.invocation_metadata() or ()) or ""
            exchange = asyncio.get_running_loop().run_in_executor(None, self._file.exchange, secret)
            token, entry = await asyncio.shield(exchange)
        except NotAuthorisedError as error:
            if self._throttle.failed(peer):
                log("join_refused", peer=peer)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.what)
            raise
        self._throttle.accepted(peer, digest(token))
        log("joined", name=entry.name, peer=peer)
        await context.write(pb.JoinResponse(token=token, name=entry.name, devices=entry.devices or ()))
