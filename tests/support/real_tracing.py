"""OpenTelemetry's own SDK with an exporter in memory, for the tests that ask for it: a process has one provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class SwitchedProvider(trace.TracerProvider):
    """The SDK's while a test wants spans; else what a process without an SDK has."""

    def __init__(self) -> None:
        self.real: trace.TracerProvider | None = None

    def get_tracer(self, *arguments: Any, **options: Any) -> trace.Tracer:
        return (self.real or trace.NoOpTracerProvider()).get_tracer(*arguments, **options)


_switched = SwitchedProvider()


@contextmanager
def real_tracing() -> Iterator[InMemorySpanExporter]:
    """Spans are recorded within; what is yielded has those that have ended."""
    if trace.get_tracer_provider() is not _switched:
        trace.set_tracer_provider(_switched)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    _switched.real = provider
    try:
        yield exporter
    finally:
        _switched.real = None
        provider.shutdown()
