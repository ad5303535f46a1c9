"""BucketView: the bucket as the API shows it. Its numbers are the library's own, so that the CLI shows the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from s3queue.clock import Clock, SystemClock
from s3queue.costs.prices import PRICES, requests_cost
from s3queue.encoding import format_instant, parse_json
from s3queue.errors import CorruptState, QueueError, QueueNotFound
from s3queue.keys import check_queue, similar_names
from s3queue.protocol.stats import Stats
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore, open_state

from .console import Console
from .overview import QueueOverview, overview, queue_names
from .parallel import in_parallel
from .queue_models import Cost, Counts, Queues, QueueView, Verdict
from .statistics_models import Prices, Statistics
from .verdicts import verdict

#: LIST pages per kind of object in one count: to say that there are many messages, not all of them are listed.
PAGES = 2
STATISTICS = "analytics/latest.json"
#: A larger document is not read: a function answers with 6 MB at most.
STATISTICS_BYTES = 4 * 1024 * 1024
COUNTED = ("pending", "delayed", "processing", "failed", "completed", "dead")


@dataclass(slots=True, kw_only=True)
class BucketView:
    """One bucket and its queues."""

    store: ObjectStore
    #: The deployed queues and their settings as defined.
    defined: Mapping[str, QueueSettings] = field(default_factory=dict)
    #: Whether to find queues that are not deployed; this needs the permission to LIST the whole bucket.
    discover: bool = True
    clock: Clock = field(default_factory=SystemClock)
    #: Where logs are.
    console: Console = field(default_factory=Console)

    def names(self) -> list[str]:
        found = queue_names(self.store) if self.discover else []
        return sorted({*self.defined, *found})

    def queue(self, name: str) -> Queue:
        """A queue that exists, with its current settings.

        Raises:
            QueueNotFound: there is no such queue; a message sent there would wait for ever.
        """
        check_queue(name)
        if not self.discover and name not in self.defined:
            # Whoever may see the deployed queues only is refused a look for others.
            raise QueueNotFound(name, similar_names(name, self.defined))
        settings = self.defined.get(name, QueueSettings())
        # An operator sends nothing: what a record has sent is its worker's and the sweeper's to store.
        queue = Queue(store=self.store, name=name, settings=settings, clock=self.clock, sends_to=())
        is_known = name in self.defined or queue.define_as_published()
        if not is_known and not self.store.list(queue.keys.root, limit=1).objects:
            raise QueueNotFound(name, similar_names(name, self.names()))
        queue.refresh()
        return queue

    def describe(self, name: str) -> QueueView:
        """One queue's numbers and verdict. If it cannot be read, the reason is in its place: the others are shown."""
        try:
            seen = overview(self.store, name, settings=self.defined.get(name), pages=PAGES)
        except QueueError as error:
            return QueueView(
                name=name,
                health="unknown",
                reason=f"{type(error).__name__}: {error}",
                paused=False,
                swept_at=None,
                stats=None,
                published=None,
                cost=None,
                breaker="closed",
            )
        return _view(seen)

    def queues(self, cursor: str, limit: int) -> Queues:
        names = [name for name in self.names() if name > cursor]
        views = in_parallel(self.describe, names[:limit])
        health, reason = verdict([(view.name, view.health, view.reason) for view in views])
        counted = [view.stats for view in views if view.stats]
        dollars = sum(view.cost.dollars for view in views if view.cost)
        return Queues(
            at=max((stats.at for stats in counted), default=format_instant(self.clock.now())),
            bucket=self.store.url,
            verdict=Verdict(health=health, reason=reason),
            totals={name: sum(getattr(stats, name) for stats in counted) for name in COUNTED},
            cost=Cost(dollars=dollars, formula=FORMULA),
            queues=views,
            next_cursor=names[limit - 1] if len(names) > limit else None,
        )

    def statistics(self) -> Statistics:
        found = open_state(self.store, STATISTICS)
        prices = Prices(put=PRICES.s3_write, get=PRICES.s3_read)
        if found is None:
            return Statistics(available=False, modified_at=None, document=None, prices=prices)
        try:
            document = parse_json(found.read(STATISTICS_BYTES))
        except (CorruptState, ValueError, RecursionError):
            document = None
        modified_at = format_instant(found.modified_at)
        return Statistics(available=document is not None, modified_at=modified_at, document=document, prices=prices)


FORMULA = (
    "(completed + dead) * (3 PUT + 1 GET) + (processing + waiting for a retry) * (2 PUT + 1 GET) "
    "+ (pending + delayed) * 1 PUT; of groups and partitions, finished messages * (1 PUT + 1 GET) + journals * 2 PUT; "
    f"at ${PRICES.s3_write:.2f} per million PUT, ${PRICES.s3_read:.2f} per million GET. "
    "Counts the objects that are stored or on record, a batch as one; retries, sweeps and Lambda are extra."
)


def cost_of(stats: Stats) -> Cost:
    """The S3 requests of the messages on record, without failures: they have cost at least this much.

    Messages of a partition share the PUTs of its lease and of a journal; what deletes them is free.
    """
    finished, running = stats.finished_objects, stats.processing_objects
    alone = finished - stats.journaled_objects
    writes = 3 * alone + stats.journaled_objects + 2 * stats.journals + 2 * running + stats.pending_objects
    return Cost(dollars=requests_cost(puts=writes, gets=finished + running), formula=FORMULA)


def _view(seen: QueueOverview) -> QueueView:
    described: dict[str, Any] = seen.to_json()
    published = None if seen.stats.exact else seen.published
    return QueueView(
        **described,
        published=Counts(**published.to_json()) if published else None,
        cost=cost_of(seen.stats),
    )
