"""DeadLetters: messages that could not be processed, why, and how to replay them (`aws s3 mv` works too)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from s3queue.clock import as_duration
from s3queue.documents.acknowledgements import Acknowledgements
from s3queue.documents.dead_facts import own_metadata
from s3queue.documents.dead_letter import DeadLetter, count_by_error_type
from s3queue.documents.dead_lines import DeadLine, count_lines, dead_lines
from s3queue.documents.failure_group import FailureGroup, Selection, group_key
from s3queue.documents.message import MOVED
from s3queue.documents.record import Record
from s3queue.encoding import with_put_id
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound, QueueError
from s3queue.paths import LINES, is_lines, name_of
from s3queue.store import Object, ObjectInfo, listing

from .access import QueueAccess
from .dead_line_choice import discard_lines, is_begun, replay_lines
from .letter_writes import delete_in_place, is_of, no_such_letter, put_back, replay_in_place
from .partition_replay import goes_to_end, outcome_at_end, replay_to_end
from .removal import delete_letter

#: HEADs that run at the same time: a letter's error is in its metadata, which a LIST does not show.
READERS = 16
#: HEADs that are asked for before the first result is used.
PORTION = 4 * READERS


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one queue."""

    queue: QueueAccess

    def list(
        self,
        *,
        error_type: str | None = None,
        older_than: float | timedelta | None = None,
        newer_than: float | timedelta | None = None,
        after: str = "",
        message: str | None = None,
    ) -> Iterator[DeadLetter]:
        """Dead letters in the order of their paths, starting after `after`; one HEAD each, page by page.

        `message` selects a group: its normalised form, as `groups` shows it, or the text of any failure in it. A batch
        whose lines died of more errors than its letter's metadata can name is read, and with `message` every batch.
        """
        selection = Selection.of(error_type, message)
        keys, store = self.queue.keys, self.queue.store
        start = keys.dead(after) if after else ""
        with ThreadPoolExecutor(READERS) as readers:
            for page in listing(store, keys.prefix("dead"), after=start):
                wanted = [
                    entry for entry in page.objects if _is_within(page.at - entry.modified_at, older_than, newer_than)
                ]
                # In portions: a caller who takes only the first few should not pay for a thousand.
                for first in range(0, len(wanted), PORTION):
                    for letter in readers.map(lambda entry: self._listed(entry.key), wanted[first : first + PORTION]):
                        if letter and self._is_selected(letter, selection):
                            yield letter

    def get(self, path: str) -> tuple[DeadLetter, bytes, Record | None]:
        """A dead letter, its payload, and its record: for a line, that of the batch; None once its retention is over.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        letter, found = self._open(path)
        return letter, found.read(), self.record(letter)

    def record(self, letter: DeadLetter) -> Record | None:
        """The record of what died, for the dead lines of a batch that of the batch; None once its retention is over."""
        found = self.queue.outcome_of(letter.origin)
        is_of_lines = found is None and is_lines(letter.origin)
        return self.queue.outcome_of(letter.origin.removesuffix(LINES)) if is_of_lines else found

    def lines(self, path: str) -> Sequence[DeadLine]:
        """The dead lines of a batch, with their numbers and errors; none if the letter is a whole message.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        letter, found = self._open(path)
        with found.stream as stream:
            return dead_lines(stream) if is_lines(letter.origin) else []

    def describe(self, path: str) -> DeadLetter:
        """A dead letter without its payload, which may be large. One HEAD.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        found = self.queue.store.head(self.queue.keys.dead(path))
        letter = self._letter(found) if found else None
        if letter is None:
            raise no_such_letter(self.queue, path)
        return letter

    def groups(self, letters: Iterable[DeadLetter] | None = None) -> builtins.list[FailureGroup]:
        """These letters, or all, by error type and normalised message, largest group first; a batch is read, and counts
        as its lines.
        """
        from .dead_groups import groups_of

        return groups_of(self.queue, self.list() if letters is None else letters)

    def acknowledgements(self) -> Acknowledgements:
        """What operators have acknowledged; nothing if the document cannot be read. One GET."""
        from .dead_groups import known_acknowledgements

        return known_acknowledgements(self.queue)

    def acknowledge(
        self,
        *,
        error_type: str | None = None,
        message: str | None = None,
        everything: bool = False,
        undo: bool = False,
    ) -> int:
        """Let the letters of a group stay without counting for the verdict any more; returns how many were selected.

        What dies later counts again, also in the same group. Of a batch, all lines have to be acknowledged before its
        letter is. With `undo`, they count again, also if everything was acknowledged.

        Raises:
            InvalidRequest: nothing was named, or more letters than the document has room for: after `everything`, the
                undoing of a group needs room for all others.
            Unavailable: unknown whether it was written; calling again is safe.
        """
        from .dead_groups import acknowledge, acknowledge_everything

        selection = Selection.of(error_type, message)
        if selection.is_all == (not everything):
            raise InvalidRequest("name a group by error_type, message or both; or acknowledge everything")
        if everything:
            return acknowledge_everything(self.queue, undo=undo)
        return acknowledge(self.queue, self.list(error_type=error_type, message=message), selection, undo=undo)

    def by_error_type(self) -> dict[str, int]:
        """How many died of which error, most frequent first."""
        return count_by_error_type(self.list())

    def metrics(self) -> dict[str, Any]:
        """How many there are, the ages of the oldest and the newest in seconds, and the counts by error type."""
        letters = list(self.list())
        now = self.queue.store.list(self.queue.keys.prefix("dead"), limit=1).at
        # A death is dated by the worker's idea of S3's time, which may be a little ahead of the LIST's whole second.
        ages = [max(0.0, (now - letter.died_at).total_seconds()) for letter in letters]
        return {
            "count": sum(sum(letter.counts.values()) for letter in letters),
            "oldest_seconds": max(ages, default=None),
            "newest_seconds": min(ages, default=None),
            "by_error_type": count_by_error_type(letters),
        }

    def replay(self, path: str, *, error_type: str | None = None, message: str | None = None) -> str:
        """Put a dead letter back as a message that has all its attempts again; returns the message's path.

        Written first and deleted then: a crash in between leaves both, and replaying again is safe. What was replayed
        before and has its outcome since is not run again: only its letter is deleted. Of a batch's dead lines,
        `error_type` and `message` (see `list`) replay those with that error; the others stay. After a crash, or
        without an answer, repeat the same choice: it runs once. Until then these lines are still in the letter, and
        run a second time if the whole letter, or another choice with them in it, is replayed first, or at the same
        time. A large letter goes through the temporary folder. A message of a group goes to its end.

        Raises:
            MessageNotFound: no dead letter has this path, or nothing in it has this error.
            Conflict: a message of that name is there already, its burial is not finished, or, in a group, it is being
                replayed with another payload.
            Unreadable: the message still cannot be read where it lies.
            NoSpace: the temporary folder cannot hold it.
            Unavailable: unknown whether it was replayed; calling again is safe.
        """
        letter, found = self._open(path)
        target = f"messages/{name_of(letter.origin)}"
        is_last = goes_to_end(letter.origin)
        self._check_buried(letter, found, "" if is_last else target)
        selection = Selection.of(error_type, message)
        try:
            is_whole = self._is_whole(letter, selection)
            if is_whole and letter.lines and not selection.is_all:
                is_whole = not is_begun(self.queue, letter, selection)
        except MessageNotFound:
            found.stream.close()
            raise
        if not is_whole:
            return replay_lines(self.queue, letter, found, selection)
        if letter.is_unreadable:
            found.stream.close()
            return replay_in_place(self.queue, letter, found)
        if is_last:
            return replay_to_end(self.queue, letter, found)
        if self.is_replayed(letter):
            found.stream.close()
        else:
            if letter.generation and found.at - letter.generation.put_at < timedelta(seconds=1):
                # Equal bytes within one second are one generation, and that one is dead.  [P3]
                self.queue.clock.sleep(1.0)
            own = own_metadata(found)
            try:
                put_back(self.queue, target, found, with_put_id(own, letter.replay_id), if_absent=True)
            except Conflict as conflict:
                said = f"{self.queue.name}/{target} exists already: let it finish, or delete one of the two"
                raise Conflict(said) from conflict
        delete_letter(self.queue, found)
        self.queue.events.emit("message.enqueued", queue=self.queue.name, path=target, size=found.size, replayed=True)
        return target

    def _check_buried(self, letter: DeadLetter, found: Object, target: str) -> None:
        """Raises Conflict while its message lies there under another name: its burial would write the letter again."""
        key = self.queue.keys.message(letter.origin.removesuffix(LINES))
        is_same = letter.is_unreadable or key == self.queue.keys.message(target)
        message = None if is_same else self.queue.store.head(key)
        if message and is_of(message, letter):
            found.stream.close()
            raise Conflict(f"{key} is still being buried; replay its letter when the sweeper has deleted it")

    def is_replayed(self, letter: DeadLetter) -> bool:
        """Whether this very letter was replayed before, and has its outcome; a death has a letter of its own."""
        return self.replay_outcome(letter) is not None

    def replay_outcome(self, letter: DeadLetter) -> Record | None:
        """What became of an earlier replay of this very letter; None if it has no outcome, or there was none."""
        if goes_to_end(letter.origin):
            return outcome_at_end(self.queue, letter)
        record = self.queue.outcome_of(f"messages/{name_of(letter.origin)}")
        before = letter.replay_id.removeprefix(MOVED)  # what older versions gave it
        return record if record and record.put_id in (letter.replay_id, before) else None

    def discard(self, letter: DeadLetter, *, error_type: str | None = None, message: str | None = None) -> bool:
        """Delete a letter that was listed; False if it is gone, or the message has died again since.

        Of a batch's dead lines, `error_type` and `message` delete those with that error; the others stay.

        Raises:
            MessageNotFound: it is a whole message, and did not die of that.
        """
        selection = Selection.of(error_type, message)
        if not self._is_whole(letter, selection):
            return discard_lines(self.queue, letter, selection)
        found = self.queue.store.head(self.queue.keys.dead(letter.path))
        if found is None or self._letter(found) != letter:
            return False
        if letter.is_unreadable:
            delete_in_place(self.queue, letter)
        return delete_letter(self.queue, found)

    def replay_many(
        self, paths: Iterable[str], *, error_type: str | None = None, message: str | None = None
    ) -> dict[str, str]:
        """Replay each; path → the new message's path, or, if it failed, the error's name and text."""
        done: dict[str, str] = {}
        for path in paths:
            try:
                done[path] = self.replay(path, error_type=error_type, message=message)
            except QueueError as error:
                done[path] = f"{type(error).__name__}: {error}"
        return done

    def replay_all(
        self,
        *,
        error_type: str | None = None,
        older_than: float | timedelta | None = None,
        newer_than: float | timedelta | None = None,
        message: str | None = None,
    ) -> dict[str, str]:
        """Replay the letters that the filter selects; see `list` and `replay_many`."""
        selected = self.list(error_type=error_type, older_than=older_than, newer_than=newer_than, message=message)
        return self.replay_many([letter.path for letter in selected], error_type=error_type, message=message)

    def delete(self, path: str) -> None:
        """Delete one dead letter for good; its record stays.

        Raises:
            MessageNotFound: no dead letter has this path.
        """
        self.discard(self.describe(path))

    def purge(
        self,
        *,
        error_type: str | None = None,
        older_than: float | timedelta | None = None,
        message: str | None = None,
    ) -> int:
        """Delete the letters that the filter selects for good; returns how many."""
        selected = list(self.list(error_type=error_type, older_than=older_than, message=message))
        return sum(self.discard(letter, error_type=error_type, message=message) for letter in selected)

    def _is_selected(self, letter: DeadLetter, selection: Selection) -> bool:
        """Whether something in it is; the lines of a batch are read if their messages matter."""
        if selection.error_type is not None and selection.error_type not in letter.counts:
            return False
        if selection.message is None:
            return True
        from .dead_groups import parts_of

        return any(map(selection.has, parts_of(self.queue, letter)))

    def _is_whole(self, letter: DeadLetter, selection: Selection) -> bool:
        """Whether the whole letter is meant, and not some lines of a batch.

        Raises:
            MessageNotFound: it is a whole message, and died of something else by now.
        """
        if not letter.lines:
            # Its own error counts: replayed lines that died as a whole still hold those of their first death.
            if not selection.has(group_key(letter.error_type, letter.error)):
                raise MessageNotFound(f"{self.queue.name}/{letter.path} did not die of {selection.describe()}")
            return True
        if selection.message is not None:
            return False
        return selection.error_type is None or letter.has_only(selection.error_type)

    def _listed(self, key: str) -> DeadLetter | None:
        info = self.queue.store.head(key)
        letter = self._letter(info) if info else None
        if letter is None or letter.error_types or not letter.lines:
            return letter
        found = self.queue.store.open(key)
        return replace(DeadLetter.of(letter.path, found), error_types=count_lines(found.stream)) if found else None

    def _letter(self, info: ObjectInfo) -> DeadLetter | None:
        path = self.queue.keys.path_under("dead", info.key)
        return DeadLetter.of(path, info) if path else None

    def _open(self, path: str) -> tuple[DeadLetter, Object]:
        """A letter and its payload. Raises MessageNotFound."""
        found = self.queue.store.open(self.queue.keys.dead(path))
        letter = self._letter(found) if found else None
        if found is None or letter is None:
            raise no_such_letter(self.queue, path)
        return letter, found


def _is_within(age: timedelta, older_than: float | timedelta | None, newer_than: float | timedelta | None) -> bool:
    return (older_than is None or age >= as_duration(older_than)) and (
        newer_than is None or age <= as_duration(newer_than)
    )
