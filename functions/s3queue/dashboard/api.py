"""The REST API: queues, messages, dead letters, workers, runs; one resolver for Lambda and for `s3queue dashboard`.

A message's path is a query parameter, not a part of the address: names may contain `..`, `//` and `%2F`, which browsers
and gateways rewrite in an address, but never in a query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query

from s3queue.encoding import format_instant
from s3queue.flow.effective_settings import effective
from s3queue.flow.partition_states import has_partitions
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.settings import QueueSettings, with_current_names
from s3queue.store import ObjectStore

from . import browse, letter_models, letters, message_models, models, queue_models, requests, run_models, runs, stuck
from .bucket_view import BucketView
from .console import Console
from .flows import register_flows
from .last_hour import register_last_hour
from .operating import register_operating
from .pages import register_document, register_pages
from .partitions import register_partitions
from .resolver import JSON, Resolver, Role
from .schedules import register_schedules
from .statistics_models import Statistics
from .throughput import flow

TITLE = "s3queue"
VERSION = "1"
ABOUT = (
    "A message queue whose only server is an S3 bucket. Requests that change something need the header `x-s3queue: 1`. "
    "Lists are paginated: pass `next_cursor` back as `cursor`."
)

QueueName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The queue's name.")]
MessagePath = Annotated[
    str,
    Query(
        pattern=r"^(messages|delayed)/", min_length=10, max_length=1024, description="As in the lists: `messages/…`."
    ),
]
Cursor = Annotated[str, Query(max_length=1024, description="The `next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=requests.MOST_ROWS)]
Seconds = Annotated[float, Query(ge=0, le=requests.LONGEST_SECONDS, allow_inf_nan=False)]

_PROBLEMS = {
    403: "A permission is missing, or the request comes from another site.",
    404: "There is no such queue or message.",
    413: "The request is too large.",
    415: "The body is not JSON.",
    422: "A field of the request is wrong; `fields` says which.",
    503: "S3 gave no clear answer; try again.",
}
_CHANGES = {409: "Someone else got there first.", 429: "The queue is full."}


def build(
    store: ObjectStore,
    *,
    defined: Mapping[str, QueueSettings] | None = None,
    discover: bool = True,
    role: Role = "operator",
    console: Console | None = None,
) -> Resolver:
    """The API over one bucket; `defined` are the deployed queues, `discover` also finds those that nobody deployed.

    With a `console`, answers hold addresses of logs.
    For a reader, whatever changes something is refused, and no answer has a payload.
    """
    app = Resolver(role)
    view = BucketView(store=store, defined=defined or {}, discover=discover, console=console or Console())
    _register_queues(app, view)
    _register_messages(app, view)
    _register_dead(app, view)
    register_schedules(app, view, _described)
    register_flows(app, view, _described)
    register_partitions(app, view, _described)
    register_operating(app, view, _described)
    register_last_hour(app, view, _described)
    register_pages(app)
    register_document(app, lambda: document(app))
    return app


def document(app: Resolver) -> dict[str, Any]:
    """The OpenAPI document."""
    text = app.get_openapi_json_schema(title=TITLE, version=VERSION, description=ABOUT)
    found: dict[str, Any] = json.loads(text)
    return found


def _described(answer: Any, *, changes: bool = False, created: bool = False) -> dict[str, Any]:
    problems = _PROBLEMS | (_CHANGES if changes else {})
    responses: dict[int, Any] = {
        status: {"description": text, "content": {JSON: {"model": models.Problem}}} for status, text in problems.items()
    }
    for status in (200, 201) if created else (200,):
        responses[status] = {"description": "Done.", "content": {JSON: {"model": answer}}}
    return {"responses": responses}


def _register_queues(app: Resolver, view: BucketView) -> None:
    @app.get("/api/queues", summary="All queues, with a verdict", tags=["queues"], **_described(queue_models.Queues))
    def queues(cursor: Cursor = "", limit: Limit = requests.MOST_ROWS) -> queue_models.Queues:
        return view.queues(cursor, limit)

    @app.get("/api/queues/<queue>", summary="One queue", tags=["queues"], **_described(queue_models.QueueDetail))
    def queue_detail(queue: QueueName) -> queue_models.QueueDetail:
        found = view.queue(queue)
        overrides = with_current_names(found.overrides())
        published = found.published_settings()
        at = format_instant(published.written_at) if published else ""
        return queue_models.QueueDetail(
            **view.describe(queue).model_dump(),
            settings=found.settings.to_json(),
            effective=[queue_models.Setting(**one.to_json()) for one in effective(found.defined, overrides)],
            published_settings=queue_models.SettingsSource(by=published.by, at=at) if published else None,
            overrides=overrides,
            has_partitions=has_partitions(found),
        )

    @app.get("/api/queues/<queue>/stats", summary="Count now", tags=["queues"], **_described(queue_models.Counts))
    def stats(queue: QueueName, pages: Annotated[int, Query(ge=1, le=100)] = 20) -> queue_models.Counts:
        return queue_models.Counts(**view.queue(queue).stats(pages=pages).to_json())

    @app.get("/api/queues/<queue>/flow", summary="The last hour", tags=["queues"], **_described(queue_models.Flow))
    def queue_flow(queue: QueueName) -> queue_models.Flow:
        return flow(view.queue(queue))

    @app.get("/api/queues/<queue>/stuck", summary="What is stuck", tags=["queues"], **_described(queue_models.Stuck))
    def queue_stuck(queue: QueueName) -> queue_models.Stuck:
        return stuck.stuck(view.queue(queue))

    @app.get("/api/queues/<queue>/workers", summary="Pull workers", tags=["queues"], **_described(queue_models.Workers))
    def workers(queue: QueueName) -> queue_models.Workers:
        return queue_models.Workers(workers=stuck.workers(view.queue(queue)))

    @app.get("/api/queues/<queue>/runs", summary="Spark runs", tags=["queues"], **_described(run_models.Runs))
    def queue_runs(queue: QueueName) -> run_models.Runs:
        return runs.runs(view.queue(queue), view.console)

    changed = _described(queue_models.Paused, changes=True)

    @app.post("/api/queues/<queue>/pause", summary="Stop claiming", tags=["queues"], **changed)
    def pause(queue: QueueName) -> queue_models.Paused:
        view.queue(queue).pause()
        return queue_models.Paused(queue=queue, paused=True)

    @app.post("/api/queues/<queue>/resume", summary="Claim again", tags=["queues"], **changed)
    def resume(queue: QueueName) -> queue_models.Paused:
        view.queue(queue).resume()
        return queue_models.Paused(queue=queue, paused=False)

    @app.get("/api/queues/<queue>/breaker", summary="Breaker", tags=["queues"], **_described(queue_models.BreakerView))
    def breaker(queue: QueueName) -> queue_models.BreakerView:
        return stuck.breaker(queue, view.queue(queue).breaker())

    forced = _described(queue_models.BreakerView, changes=True)

    @app.post("/api/queues/<queue>/breaker", summary="Force the breaker", tags=["queues"], **forced)
    def force_breaker(queue: QueueName, wanted: Annotated[requests.ForceBreaker, Body()]) -> queue_models.BreakerView:
        return stuck.breaker(queue, view.queue(queue).force_breaker(wanted.state))

    @app.get("/api/statistics", summary="Statistics computed by Spark", tags=["statistics"], **_described(Statistics))
    def statistics() -> Statistics:
        return view.statistics()


def _register_messages(app: Resolver, view: BucketView) -> None:
    @app.get(
        "/api/queues/<queue>/messages",
        summary="Messages by state",
        tags=["messages"],
        **_described(message_models.Messages),
    )
    def messages(
        queue: QueueName,
        state: Annotated[models.Listed, Query()] = "pending",
        prefix: Annotated[str, Query(max_length=1000, description="The beginning of the path or of the name.")] = "",
        cursor: Cursor = "",
        limit: Limit = 50,
        newest: Annotated[bool, Query(description="Only the last hour, newest first, on one page.")] = False,
    ) -> message_models.Messages:
        found = view.queue(queue)
        if newest and state == "completed" and not prefix:
            return browse.newest(found, limit)
        return browse.browse(found, state, prefix, cursor, limit)

    sent = _described(message_models.Enqueued, changes=True, created=True)

    @app.post("/api/queues/<queue>/messages", summary="Enqueue", tags=["messages"], **sent)
    def enqueue(queue: QueueName, message: Annotated[requests.Enqueue, Body()]) -> Response[message_models.Enqueued]:
        found = view.queue(queue)
        written: list[Any] = []
        found.events.on("message.enqueued", written.append)
        path = found.enqueue(
            message.body,
            priority=message.priority,
            delay=message.delay_seconds,
            due_at=message.due_at,
            dedup_id=message.dedup_id,
            metadata=message.metadata,
            dedup_for=message.dedup_for_seconds,
            group=message.group,
        )
        done = message_models.Enqueued(path=path, created=bool(written))
        return Response(201 if done.created else 200, content_type=JSON, body=done)

    @app.get(
        "/api/queues/<queue>/message",
        summary="One message",
        tags=["messages"],
        **_described(message_models.MessageLife),
    )
    def message(
        queue: QueueName,
        path: MessagePath,
        body: Annotated[bool, Query(description="Whether to return the payload, up to 64 KiB.")] = False,
    ) -> message_models.MessageLife:
        if body:
            app.check_operator("see payloads")
        found = browse.life(view.queue(queue), path, with_body=body)
        found.logs = view.console.logs_of([found.worker, *(str(one.get("worker", "")) for one in found.attempts)])
        return found

    ended = _described(message_models.Cancelled, changes=True)

    @app.post("/api/queues/<queue>/message/cancel", summary="Cancel one message", tags=["messages"], **ended)
    def cancel(queue: QueueName, path: MessagePath) -> message_models.Cancelled:
        return message_models.Cancelled(path=path, outcome=view.queue(queue).cancel(path).outcome)

    retried = _described(message_models.Retried, changes=True)

    @app.post("/api/queues/<queue>/message/retry", summary="Try one message now", tags=["messages"], **retried)
    def retry(queue: QueueName, path: MessagePath) -> message_models.Retried:
        return message_models.Retried(**view.queue(queue).retry(path).to_json())

    given = _described(message_models.Released, changes=True)

    @app.post(
        "/api/queues/<queue>/message/release", summary="Take one message from its worker", tags=["messages"], **given
    )
    def release(queue: QueueName, path: MessagePath) -> message_models.Released:
        return message_models.Released(**view.queue(queue).release_held(path).to_json())

    again = _described(message_models.Enqueued, changes=True)

    @app.post("/api/queues/<queue>/message/replay", summary="Run one message again", tags=["messages"], **again)
    def replay_message(queue: QueueName, path: MessagePath) -> message_models.Enqueued:
        found = view.queue(queue)
        written: list[Any] = []
        found.events.on("message.enqueued", written.append)
        return message_models.Enqueued(path=found.replay(path), created=bool(written))


def _register_dead(app: Resolver, view: BucketView) -> None:
    @app.get(
        "/api/queues/<queue>/dead", summary="Dead letters", tags=["dead letters"], **_described(letter_models.DeadPage)
    )
    def dead(
        queue: QueueName,
        error_type: Annotated[str | None, Query(max_length=1000)] = None,
        older_than_seconds: Seconds | None = None,
        newer_than_seconds: Seconds | None = None,
        cursor: Cursor = "",
        limit: Limit = 50,
        message: Annotated[
            str | None,
            Query(min_length=1, max_length=2000, description="A group: the normalised form, or any text of it."),
        ] = None,
        acknowledged: Annotated[bool | None, Query(description="Only those that are, or are not.")] = None,
    ) -> letter_models.DeadPage:
        wanted = letters.Filter(
            error_type=error_type,
            older_than_seconds=older_than_seconds,
            newer_than_seconds=newer_than_seconds,
            message=message,
            acknowledged=acknowledged,
        )
        return letters.page(view.queue(queue), wanted, cursor, limit)

    @app.get(
        "/api/queues/<queue>/dead/errors",
        summary="Dead letters by error",
        tags=["dead letters"],
        **_described(letter_models.Errors),
    )
    def dead_errors(queue: QueueName) -> letter_models.Errors:
        return letters.errors(view.queue(queue))

    again = _described(letter_models.Replayed, changes=True)

    @app.post("/api/queues/<queue>/dead/replay", summary="Replay dead letters", tags=["dead letters"], **again)
    def replay(queue: QueueName, selection: Annotated[requests.Replay, Body()]) -> letter_models.Replayed:
        to = view.queue(selection.to) if selection.to is not None else None
        return letters.replay(view.queue(queue), selection, to)

    @app.post(
        "/api/queues/<queue>/dead/delete",
        summary="Delete dead letters for good",
        tags=["dead letters"],
        **_described(letter_models.DeletedLetters, changes=True),
    )
    def delete_letters(
        queue: QueueName, selection: Annotated[requests.DeleteLetters, Body()]
    ) -> letter_models.DeletedLetters:
        return letters.delete(view.queue(queue), selection)

    @app.post(
        "/api/queues/<queue>/dead/acknowledge",
        summary="Let dead letters stay without counting",
        tags=["dead letters"],
        **_described(letter_models.Acknowledged, changes=True),
    )
    def acknowledge(queue: QueueName, selection: Annotated[requests.Acknowledge, Body()]) -> letter_models.Acknowledged:
        return letters.acknowledge(view.queue(queue), selection)

    gone = _described(letter_models.Deleted, changes=True)

    @app.delete("/api/queues/<queue>/dead", summary="Delete one dead letter for good", tags=["dead letters"], **gone)
    def delete_dead(queue: QueueName, path: MessagePath) -> letter_models.Deleted:
        DeadLetters(view.queue(queue)).delete(path)
        return letter_models.Deleted(path=path)
