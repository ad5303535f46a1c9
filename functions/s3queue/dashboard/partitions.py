"""The API's route for the partitions of a queue: groups, and the shares of `partitions`."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Path, Query

from s3queue.flow.partition_states import list_partitions

from . import requests
from .bucket_view import BucketView
from .partition_models import Partitions, PartitionView
from .resolver import Resolver

QueueName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The queue's name.")]
Cursor = Annotated[
    str, Query(max_length=600, pattern=r"^(@[^/]+)?$", description="The `next_cursor` of the page before.")
]
Limit = Annotated[int, Query(ge=1, le=requests.MOST_ROWS)]
Leased = Annotated[bool, Query(description="Only those that a worker holds, or in which messages have failed.")]


def register_partitions(app: Resolver, view: BucketView, described: Any) -> None:
    """`described` makes the description of a route from the model of its answer."""
    at = "/api/queues/<queue>/partitions"

    @app.get(at, summary="Groups and shares: who holds them, what waits", tags=["queues"], **described(Partitions))
    def partitions(queue: QueueName, cursor: Cursor = "", limit: Limit = 50, leased: Leased = False) -> Partitions:
        page = list_partitions(view.queue(queue), limit=limit, after=cursor, leased=leased).to_json()
        return Partitions(
            at=page["at"],
            partitions=[PartitionView(**one) for one in page["partitions"]],
            exact=page["exact"],
            next_cursor=page["next_after"],
        )
