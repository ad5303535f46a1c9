"""OperatedQueue: what operators ask of a queue, and do to it. `Queue` has all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from s3queue.documents.record import Record
from s3queue.paths import partition_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.outcomes import Outcomes
from s3queue.store import ObjectInfo

if TYPE_CHECKING:
    from s3queue.documents.breaker_document import StoredBreaker
    from s3queue.documents.published_settings import PublishedSettings, Publisher
    from s3queue.protocol.last_hour import LastHour
    from s3queue.protocol.removal import Removal
    from s3queue.protocol.stats import Stats
    from s3queue.protocol.status import Status

    from .listing import ListedState, MessagePage
    from .releasing import ReleasedClaim
    from .retrying import RetryInfo
    from .schedules import Schedules


@dataclass(slots=True, kw_only=True)
class OperatedQueue(QueueAccess):
    """One queue, as operators see it. What they rarely ask for is imported when they do."""

    outcomes: Outcomes = field(init=False)
    #: What can be done with a lease once it is taken. The sweeper and Spark runs use it, too.
    leases: LeaseProtocol = field(init=False)

    def breaker(self) -> StoredBreaker:
        """The state of the queue's breaker; closed if nothing has ever failed. One GET.

        Raises:
            NewerFormat: a newer version of s3queue wrote it.
        """
        from .breaker_access import read_breaker

        return read_breaker(self.store, self.keys)

    def force_breaker(self, how: Literal["open", "closed", "auto"]) -> StoredBreaker:
        """Keep the breaker open or closed, whatever happens, for every process within ten seconds; `auto` ends that.

        It holds for workers whose queue has a breaker; any queue can be paused.

        Raises:
            InvalidRequest: `how` is none of these.
        """
        from .breaker_access import force_breaker

        return force_breaker(self, how)

    def status(self, path: str) -> Status:
        """The state of a message, and everything that is known about it.

        Raises:
            MessageNotFound: no message, lease, record or dead letter has this path.
        """
        # Operators ask for it; a function that processes messages starts without it.
        if partition_of(path):
            from s3queue.protocol.partition_status import read_partition_status

            return read_partition_status(self, path)
        from s3queue.protocol.status import read_status

        return read_status(self.store, self.keys, path)

    def cancel(self, path: str) -> Record:
        """Cancel a message, and return the record that counts: its `outcome` is `cancelled`, unless the message was
        finished before.  [P3]

        A message that waits, for a worker, its due time or its next attempt, never runs: `is_withdrawn` says that it
        was such a one. One that is being processed is told at its handler's next `context.check()`, `extend` or
        `progress`; what the handler returns after that does not count, and it is not tried again. A batch is cancelled
        as a whole; lines that are done stay done. With `history=False` a completion leaves no record: one that comes at
        the same moment is called `cancelled`.

        Raises:
            MessageNotFound: no message and no record has this path.
            InvalidRequest: it is dead, and lies there only because nobody can read it: delete or replay its letter.
            Conflict: it was PUT anew while the message before it is processed, or may have been, within one second; or
                a worker holds its partition and may be running it; nothing was changed.
            Unavailable: unknown whether it was cancelled; calling again is safe.
        """
        from .cancel import cancel

        return cancel(self.leases, path)

    def list(self, state: ListedState, *, limit: int = 100, after: str = "", prefix: str = "") -> MessagePage:
        """Messages in one state, in the order of their paths; pass `next_after` back as `after` for the next page.

        States: pending, delayed (also what is due by now), processing, waiting (for its next attempt), completed, dead,
        cancelled. `prefix` is the beginning of a path. Pending, delayed and dead ones cost LISTs only; each other row
        costs a GET, and so do those that turn out to have another state. A lease or a journal of a partition is one GET
        for all of its messages, which are never cut: a page may then be longer than `limit`. A page of a large queue
        may have fewer rows than `limit`, and not be the last.

        Raises:
            InvalidRequest: no such state, or the limit is not from 1 to 1,000.
        """
        from .listing import list_messages

        return list_messages(self, state, limit=limit, after=after, prefix=prefix)

    def retry_info(self, path: str) -> RetryInfo:
        """How often a message that is not finished was tried, how often it may be tried yet, when, and why it failed.

        Raises:
            MessageNotFound: no such message is in the queue; `status` tells what became of a finished one.
        """
        from .retrying import retry_info

        return retry_info(self, path)

    def retry(self, path: str) -> RetryInfo:
        """Let a message that waits for its next attempt be tried now; a sweeper or a pull worker finds it in seconds.

        Raises:
            MessageNotFound: no such message is in the queue.
            InvalidRequest: it does not wait: it is pending, processed, or dead and cannot be read.
            Conflict: a worker has just claimed it.
            Unavailable: unknown whether it was changed; calling again is safe.
        """
        from .retrying import retry_now

        return retry_now(self.leases, path)

    def release_held(self, path: str) -> ReleasedClaim:
        """Give a message back that a worker holds which is known to be dead; it is tried again within seconds, and no
        attempt is used. Returns who held it.  [P5]

        Should the holder be alive after all, its handler goes on beside the next one: its extension and its failure
        raise LeaseLost, and its completion counts if it is the first.  [P3]

        Raises:
            MessageNotFound: no such message is in the queue.
            InvalidRequest: nobody holds it, or it is being buried or cancelled.
            Conflict: its holder has just shown that it is alive, or someone else has the message by now.
            CorruptState: its lease cannot be read; the sweeper ends it.
            Unavailable: unknown whether it was released; calling again is safe.
        """
        from .releasing import release_held

        return release_held(self.leases, path)

    def holder(self, path: str) -> ReleasedClaim:
        """Who holds a message, without releasing it: which worker, since when, in which attempt.

        Raises:
            MessageNotFound, InvalidRequest: as `release_held`.
        """
        from .releasing import holder

        return holder(self.leases, path)

    def replay(self, path: str, *, of: Record | None = None, to: QueueAccess | None = None) -> str:
        """Run a message again that is dead, or completed with its payload kept (`keep_payload`); returns its path.

        A completed message becomes a new message of its name, with all its attempts; each completion is replayed once:
        whoever asks again while the new message waits or runs adds nothing. Once that has an outcome, the next call
        replays *that* one. Give the record that you have seen (`status(path).record`) as `of` to replay that completion
        and no later one: then calling again is safe at any time. A dead letter may go `to` another queue. `DeadLetters`
        replays many, and some lines of a batch.

        Raises:
            MessageNotFound: there is no such message or letter, or its payload was not kept.
            Conflict: a message of that name is there already, `of` is not its latest outcome, or it is being buried.
            InvalidRequest: it cannot be replayed there; the text says why.
            Unavailable: unknown whether it was replayed; of a letter, or with `of`, calling again is safe.
        """
        if to is not None and (to.name, to.store.url) != (self.name, self.store.url):
            from .replay_to import replay_to

            return replay_to(self, path, to)
        record = of or self.outcome_of(path)
        if record is None or record.outcome == "dead":
            from s3queue.protocol.dead_letters import DeadLetters

            return DeadLetters(self).replay(path)
        from .replay_completed import replay_completed

        return replay_completed(self, record)

    def presign_get(self, what: str, *, expires: float | timedelta = 3600) -> str:
        """A URL with which someone without credentials can GET what a handler made, for at most seven days.

        `what` is `results/…` below the queue, where its handler may write; a URL of the queue's bucket, as a handler
        may return it; or the path of a completed message, for the payload that `keep_payload` kept. It is signed with
        this process's credentials: it ends with them, if they end sooner, and lets nobody read what they may not.

        Raises:
            InvalidRequest: it is none of these, or the time is out of range.
            MessageNotFound: there is no such object, or the payload was not kept.
        """
        from .downloads import presign_get

        return presign_get(self, self.outcomes, what, expires)

    def publish_settings(self, by: Publisher = "worker") -> bool:
        """Let operators see the settings of this queue's definition; True if that changed anything. An error is logged.

        One GET, and a conditional PUT if they are new. The sweeper of a deployment and `s3queue work` do it.
        """
        from .effective_settings import publish_settings

        return publish_settings(self, by)

    def published_settings(self) -> PublishedSettings | None:
        """The settings of the definition, as a deployment or a worker published them; None if nobody has. One GET."""
        from s3queue.protocol.overrides import read_published

        return read_published(self)

    def replay_edited(self, path: str, body: bytes) -> str:
        """Replay a dead letter with another payload; returns the message's path. Its metadata stays.

        Written first and deleted then, like every replay; each death is replayed once, edited or not. If this returns,
        it is this payload that runs. A message of a group goes to its end.

        Raises:
            MessageNotFound: no dead letter has this path.
            InvalidRequest: it is a batch, or its message could not be read. MessageTooLarge: the new payload is.
            Conflict: a message of that name is there already, the letter was replayed before, or with another payload,
                or its burial is not finished.
            Unavailable: unknown whether it was replayed; calling again is safe.
        """
        from s3queue.protocol.dead_letters import DeadLetters

        from .edited_replay import replay_edited

        return replay_edited(self, DeadLetters(self), path, body)

    def stats(self, *, pages: int | None = None) -> Stats:
        """Count now. `pages` limits the LISTs per kind of object (1,000 objects each)."""
        from s3queue.protocol.stats import measure

        return measure(self.store, self.keys, pages=pages)

    def published_stats(self) -> Stats | None:
        """The sweeper's last count; None if there is none, or if it cannot be read. One GET."""
        from s3queue.protocol.stats import published_stats

        return published_stats(self.store, self.keys)

    def last_hour(self) -> LastHour:
        """What has finished in the last hour, and how long it waited and ran, as a sweeper counted it. One GET.

        Up to a minute old on a queue that has work, up to ten on one that has none. Beyond twenty outcomes a minute,
        records are sampled: `rank_error` and `value_error` say how far off the percentiles may be. Without a sweeper,
        or with `history=False`, there are no figures, and `reason` says why.
        """
        from s3queue.protocol.last_hour import read_last_hour

        return read_last_hour(self.store, self.keys, history=self.settings.history)

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules: list, pause, resume and remove them."""
        # Most queues have none.
        from .schedules import Schedules

        return Schedules(self)

    def cleanup(self) -> int:
        """Delete what is past its retention; returns how many objects: records, kept payloads, markers of dedup ids,
        dead letters, and parts of sends that nobody finished.

        For buckets without lifecycle rules.
        """
        return self._removal.cleanup()

    def purge(self) -> int:
        """Delete every message that is not being processed, without a record; returns how many."""
        return self._removal.purge()

    def purge_message(self, entry: ObjectInfo) -> bool:
        """Delete one listed message, without a record; False if it is being processed or was PUT again."""
        return self._removal.purge_message(entry)

    @property
    def _removal(self) -> Removal:
        from s3queue.protocol.removal import Removal

        return Removal(self)
