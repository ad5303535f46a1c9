"""The API's routes for the last hour, as sweepers counted it: of one queue, and of all."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import Field

from s3queue.errors import QueueError
from s3queue.keys import Keys
from s3queue.protocol.last_hour import LastHour, read_last_hour
from s3queue.settings import QueueSettings

from .bucket_view import BucketView
from .models import Answer
from .parallel import in_parallel
from .resolver import Resolver

QueueName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The queue's name.")]


class FailedAttempts(Answer):
    error_type: str
    failed_attempts: float


class FinishedMinute(Answer):
    at: str
    finished: int


class LastHourView(Answer):
    queue: str
    available: bool
    reason: str = Field(description="Why there are no figures; empty if there are.")
    since: str | None
    counted_at: str | None = Field(description="When a sweeper looked last: what finished later is not in it.")
    finished: int = Field(description="Outcomes; of a batch, its lines, if its name tells.")
    messages: float = Field(
        description="Each line of a batch counts. This and what follows are estimates if `sampled`."
    )
    completed: float
    dead: float
    cancelled: float
    retried: float = Field(description="Outcomes that took more than one attempt.")
    success_rate: float | None
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    wait_p99_seconds: float | None
    run_p50_seconds: float | None
    run_p95_seconds: float | None
    run_p99_seconds: float | None
    errors: list[FailedAttempts]
    minutes: list[FinishedMinute]
    read: int = Field(description="Objects that were read.")
    sampled: bool = Field(description="Not all of them were read.")
    rank_error: float = Field(
        description="How far off a percentile's rank may be, with 95 % confidence: 0.04 means that p95 is between p91 "
        "and p99."
    )
    value_error: float = Field(description="How far off a percentile's value may be besides, as a share of it.")
    complete: bool = Field(description="False: `finished` is a lower bound; not everything could be listed.")


class LastHours(Answer):
    queues: list[LastHourView]


def register_last_hour(app: Resolver, view: BucketView, described: Any) -> None:
    """`described` makes the description of a route from the model of its answer."""
    at = "/api/queues/<queue>/last-hour"

    @app.get(at, summary="What finished in the last hour", tags=["statistics"], **described(LastHourView))
    def last_hour(queue: QueueName) -> LastHourView:
        return LastHourView(**view.queue(queue).last_hour().to_json())

    @app.get("/api/last-hour", summary="The last hour of every queue", tags=["statistics"], **described(LastHours))
    def last_hours() -> LastHours:
        return LastHours(queues=in_parallel(lambda name: _of(view, name), view.names()))


def _of(view: BucketView, name: str) -> LastHourView:
    """One GET. If it cannot be read, the reason is in its place: the others are shown."""
    settings = view.defined.get(name, QueueSettings())
    try:
        found = read_last_hour(view.store, Keys(name), history=settings.history)
    except QueueError as error:
        found = LastHour(queue=name, reason=f"{type(error).__name__}: {error}")
    return LastHourView(**found.to_json())
