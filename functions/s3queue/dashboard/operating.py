"""Routes for an operator at work: search, the live tail, and replaying a dead letter with a repaired payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query

from s3queue.encoding import parse_instant
from s3queue.errors import InvalidRequest

from . import live_tail, models, search
from .bucket_view import BucketView
from .resolver import Resolver
from .search_models import Edited, Found, Replaced, Tail

QueueName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The queue's name.")]


def register_operating(app: Resolver, view: BucketView, described: Callable[..., dict[str, Any]]) -> None:
    @app.get("/api/queues/<queue>/search", summary="Search messages", tags=["messages"], **described(Found))
    def find(
        queue: QueueName,
        state: Annotated[models.Listed, Query()] = "dead",
        error: Annotated[str, Query(max_length=500, description="A part of the error's name or text.")] = "",
        field: Annotated[str, Query(max_length=500, description="A field of the payload, such as customer.id.")] = "",
        value: Annotated[str, Query(max_length=500, description="What the field is, or contains.")] = "",
        cursor: Annotated[str, Query(max_length=1024, description="The `next_cursor` of the search before.")] = "",
    ) -> Found:
        if field:
            app.check_operator("search payloads")
        return search.search(view.queue(queue), state, error=error, field=field, value=value, cursor=cursor)

    @app.get("/api/queues/<queue>/tail", summary="What happens now", tags=["messages"], **described(Tail))
    def tail(
        queue: QueueName,
        after: Annotated[str, Query(max_length=40, description="The `at` of the answer before.")] = "",
    ) -> Tail:
        try:
            since = parse_instant(after) if after else None
        except ValueError:
            raise InvalidRequest(f"after: {after!r} is not an instant such as 2026-11-16T10:15:00Z") from None
        return live_tail.tail(view.queue(queue), since)

    edited = described(Replaced, changes=True)

    @app.post("/api/queues/<queue>/dead/edit", summary="Replay with another payload", tags=["dead letters"], **edited)
    def edit(queue: QueueName, wanted: Annotated[Edited, Body()]) -> Replaced:
        text = wanted.body if isinstance(wanted.body, str) else json.dumps(wanted.body, ensure_ascii=False)
        return Replaced(path=view.queue(queue).replay_edited(wanted.path, text.encode()))
