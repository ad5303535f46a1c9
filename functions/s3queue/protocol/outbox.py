"""Outbox: stores what a completed message has sent, as often as it takes.  [P7]

The record says what was sent, so whoever reads it can do this, and do it again: a PUT that comes after its message was
finished is recognized by the claim, see `is_repeatable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from s3queue.documents.record import Record
from s3queue.documents.sends import STARTS, Send, StoredSends, read_staged, staged
from s3queue.documents.sent_objects import SentObject, addressed
from s3queue.errors import AccessDenied, Conflict, InvalidRequest, NotSent, Unavailable
from s3queue.keys import Keys
from s3queue.paths import group_of
from s3queue.store import UNKNOWN_TRIES, delete_unique, open_state, put_surely

from .access import QueueAccess
from .record_renewal import renew

#: So many requests for the sends of one record are made however small a sweep's budget is.
LEAST_TRIED = 10


def stage(queue: QueueAccess, sends: list[Send]) -> str:
    """Write sends that are too large for a record, before anything names them; returns the part's name. One PUT."""
    name = queue.chance.name(queue.clock.now())
    put_surely(queue.store, queue.keys.outbox(name), staged(sends, queue.chance.token()), if_absent=True)
    return name


def perform(queue: QueueAccess, record: Record, between: Callable[[], None] = lambda: None) -> int:
    """Store every send of a record, then delete its staged parts; returns how many objects were new.

    Names follow from the record, and nothing is overwritten: it may be repeated at any time, by anyone. `between` is
    called before each PUT. If not all can be stored, the record says which are: they are not stored again.

    Raises:
        Unavailable: unknown whether all are stored; calling again is safe.
        NotSent, CorruptState: one cannot be stored; the message has to be kept until it can.
    """
    storing = _Storing(queue, record, between, record.stored.part, set(record.stored.objects))
    try:
        storing.store_all()
    except Exception:
        renew(queue, record, StoredSends(storing.part, frozenset(storing.stored)))
        raise
    return storing.new


@dataclass(slots=True)
class _Storing:
    queue: QueueAccess
    record: Record
    between: Callable[[], None]
    #: All parts before this one are stored, and of this one these objects.
    part: int
    stored: set[int]
    new: int = 0
    _tried: int = 0

    def store_all(self) -> None:
        if self.part == 0:
            self._store(self.record.sends)
            self.part, self.stored = 1, set()
        for number, name in enumerate(self.record.outbox, 1):
            if number < self.part:
                continue
            self._pause()
            found = open_state(self.queue.store, self.queue.keys.outbox(name))
            # A part is deleted once all of it is stored: what is gone needs nothing.
            if found is not None:
                self._store(read_staged(found))
                delete_unique(self.queue.store, found.key, if_match=found.etag)
            self.part, self.stored = number + 1, set()

    def _pause(self) -> None:
        """Before each request. A sweep with a small budget makes a few of them all the same, or would never end."""
        self.between()
        if self._tried >= LEAST_TRIED:
            self.queue.pace()
        self._tried += 1

    def _store(self, sends: Sequence[Send]) -> None:
        """Store all that can be: one that is refused does not hinder those to other queues."""
        queue, record = self.queue, self.record
        for target in self._targets(sends) if queue.sends_to is not None else ():
            # Before any of them is stored: this process may know less than the one that wrote the record.
            if target not in (queue.sends_to or ()):
                raise NotSent(
                    f"sends not stored, message kept: {queue.name}/{record.path} sends to {target!r}, which sends_to "
                    f"of the definition of {queue.name!r} does not name"
                )
        refused: NotSent | None = None
        closed: set[str] = set()
        held_up: set[tuple[str, str]] = set()
        for index, sent in enumerate(addressed(sends, queue.name, record.path, record.generation, part=self.part)):
            group = (sent.queue, group_of(sent.path))
            # What comes later in a group waits for what cannot be stored, or it would run first.
            if index in self.stored or sent.queue in closed or group in held_up:
                continue
            self._pause()
            try:
                self.new += self._put(sent)
                self.stored.add(index)
            except NotSent as error:
                refused = refused or error
                if group[1]:
                    held_up.add(group)
                if isinstance(error.__cause__, AccessDenied):
                    closed.add(sent.queue)
        if refused:
            raise refused

    def _targets(self, sends: Sequence[Send]) -> set[str]:
        """The queues that they go to; of a flow, its members and steps."""
        found: set[str] = set()
        for send in sends:
            if send.place == STARTS:
                from .flow_storing import targets

                found |= targets(send, f"{self.queue.name}/{self.record.path}")
            else:
                found.add(send.queue)
        return found

    def _put(self, sent: SentObject) -> bool:
        if not sent.path.startswith(STARTS):
            return _put(self.queue, self.record, sent)
        from .flow_storing import start_flow

        return start_flow(self.queue, self.record, sent.body, self.between)


def _put(queue: QueueAccess, record: Record, sent: SentObject) -> bool:
    """Whether it was new. A lost answer needs no look: a message that was finished is not run again."""
    key = Keys(sent.queue).message(sent.path)
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            queue.store.put(
                key, sent.body, if_absent=True, metadata=sent.metadata, content_type=sent.content_type, once=True
            )
            queue.events.emit(
                "message.sent", queue=queue.name, path=record.path, to=f"{sent.queue}/{sent.path}", size=len(sent.body)
            )
            return True
        except Conflict:
            return False
        except Unavailable as error:
            unknown = error
        except (AccessDenied, InvalidRequest) as error:
            raise NotSent(f"sends not stored, message kept: {queue.name}/{record.path}: {error}") from error
    raise unknown or Unavailable(f"unknown whether {key} was stored; try again")
