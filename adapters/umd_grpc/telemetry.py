"""OpenTelemetry: spans from a client's call to the launch of its kernels, by the standard gRPC instrumentation.

Nothing is loaded and nothing costs anything unless tracing is asked for (`--traces`, or `UMD_TRACES=1` in a client) and
the packages of the extra `telemetry` are installed. Where spans go is up to OpenTelemetry's own environment variables.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import grpc

from umd_core.errors import UnsupportedError

VARIABLE = "UMD_TRACES"
_OURS = "/umd."


def wanted() -> bool:
    """Returns whether this process is asked to trace its calls."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _instrumentation() -> Any:
    try:
        import opentelemetry.instrumentation.grpc as found  # noqa: PLC0415  # an extra, loaded when asked for
    except ImportError as error:
        what = "tracing needs packages that are not installed: pip install 'umd-runtime[telemetry]'"
        raise UnsupportedError(what) from error
    return found


def server_interceptor() -> grpc.aio.ServerInterceptor:
    """Returns what opens a span for each call of umd's services, as a child of the caller's.

    Raises:
        UnsupportedError: the packages are not installed.
    """

    def ours(call: Any) -> bool:
        return str(call.method).startswith(_OURS)

    interceptor: Any = _instrumentation().aio_server_interceptor(filter_=ours)
    stream, single = interceptor._intercept_aio_server_stream, interceptor._intercept_aio_server_unary

    def of_its_kind(behaviour: Any, details: Any) -> Any:
        """It takes streams for generators; ours also write to their context, and are awaited like single answers."""
        return (stream if inspect.isasyncgenfunction(behaviour) else single)(behaviour, details)

    interceptor._intercept_aio_server_stream = of_its_kind
    found: grpc.aio.ServerInterceptor = interceptor
    return found


def traced(channel: grpc.Channel) -> grpc.Channel:
    """Returns a channel whose calls carry spans, the channel itself when tracing is not asked for.

    Raises:
        UnsupportedError: the packages are not installed.
    """
    if not wanted():
        return channel
    found = _instrumentation()
    from opentelemetry.instrumentation.grpc import grpcext  # noqa: PLC0415  # an extra, loaded when asked for

    intercept: Any = grpcext.intercept_channel
    intercepted: grpc.Channel = intercept(channel, found.client_interceptor())
    return intercepted


class Spans:
    """Spans of work on a device, as children of the span in which the work was handed over."""

    def __init__(self) -> None:
        """Raises UnsupportedError when the packages are not installed."""
        _instrumentation()
        from opentelemetry import context, trace  # noqa: PLC0415  # an extra, loaded when asked for

        self._context, self._trace = context, trace
        self._tracer = trace.get_tracer("umd")

    def here(self) -> Any:
        """Returns the caller's place in its trace, for `span` on another thread."""
        return self._context.get_current()

    def carrier(self) -> dict[str, str]:
        """Returns the caller's place in its trace as text, for `entered` in another process."""
        from opentelemetry import propagate  # noqa: PLC0415  # an extra, loaded when asked for

        found: dict[str, str] = {}
        propagate.inject(found)
        return found

    @contextlib.contextmanager
    def entered(self, carrier: Mapping[str, str]) -> Generator[None]:
        """Takes the place in a trace that `carrier` described for the time of the block."""
        from opentelemetry import propagate  # noqa: PLC0415  # an extra, loaded when asked for

        token = self._context.attach(propagate.extract(carrier))
        try:
            yield
        finally:
            self._context.detach(token)

    @contextlib.contextmanager
    def span(self, name: str, place: Any, **attributes: str | int) -> Generator[None]:
        """Opens a span for the time of the block; an exception is recorded in it."""
        with self._tracer.start_as_current_span(name, context=place, attributes=attributes):
            yield


def around(spans: Spans | None, name: str, job: Callable[[], None], **attributes: str | int) -> Callable[[], None]:
    """Returns a job in a span that belongs to whoever asks now; the job itself without `spans`."""
    if spans is None:
        return job
    place = spans.here()

    def traced_job() -> None:
        with spans.span(name, place, **attributes):
            job()

    return traced_job
