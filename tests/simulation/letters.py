"""Dead letters, as the judge sees them: each holds what was recorded as dead, and none is ever overwritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from s3queue.documents.dead_facts import dead_facts
from s3queue.documents.dead_lines import DeadLine
from s3queue.documents.record import Record
from s3queue.paths import (
    LINES,
    is_batch,
    is_lines,
    is_ordered,
    lines_path,
    name_of,
    partition_of,
    partition_path,
    without_mark,
)
from s3queue.protocol.outcomes import UNREADABLE
from s3queue.protocol.removal import HEAD_VALID_SECONDS

from .ledger import Ledger, Life
from .world import World


class Letters:
    """What was written into `dead/`, and which lives it covers."""

    def __init__(self, ledger: Ledger, broken: Callable[[str, str], None], unread: Callable[[str, Any], None]) -> None:
        self._ledger = ledger
        self._broken = broken
        #: Told of letters that a replay deletes, and that stand for what could not be read.
        self._unread = unread
        #: Letter → when it was written, and with which bytes.
        self.written: dict[str, list[tuple[float, bytes]]] = {}
        #: Letter → what each one that was written there holds, and of which error that died; in the same order.
        self._deaths: dict[str, list[set[tuple[bytes, str]]]] = {}
        self.deleted_at: dict[str, float] = {}
        #: Letters taken by a delete that nothing could stop any more.
        self.unstoppable: set[str] = set()
        #: Bodies that an operator deleted for good.
        self.purged: set[bytes] = set()
        #: Where a replay goes, and the bytes of its letter → what was PUT instead of them.
        self.edited: dict[tuple[str, bytes], set[bytes]] = {}
        #: Deaths in groups whose letters went with their replays: message, ETag, and when it was enqueued.
        self._replayed_away: set[tuple[str, str, str]] = set()
        #: Message and bytes → how often a replay PUT them, and how often one deleted a letter that holds them.
        self._replays: Counter[tuple[str, bytes]] = Counter()
        self._replayed: Counter[tuple[str, bytes]] = Counter()
        #: Letter and line → the batches that it was replayed in, by choice.
        self._chosen: dict[tuple[str, bytes], set[str]] = {}

    def write(self, path: str, now: float, before: Any, after: Any) -> None:
        """[P3] A dead letter is the bytes of something that was recorded as dead.  [P1] It is never overwritten."""
        self.written.setdefault(path, []).append((now, after.body))
        if before and not bodies_of(before.body) >= bodies_of(after.body):
            self._broken("P1", f"the dead letter {path} was overwritten by another one")
        if self._death_of(path, after) in self._replayed_away:
            self._broken("P3", f"{path} died once, and has a letter again after that was replayed")
        covered = self._covered(path, after)
        self._deaths.setdefault(path, []).append(_deaths(after, covered))
        if not covered:
            self._broken("P3", f"a dead letter {path}, and nothing of these bytes was recorded as dead")
        for life, lines in covered:
            life.lettered |= lines

    def died_of(self, path: str, error_type: str, since: float) -> set[bytes] | None:
        """What died of this error in the letter that lay there then, or in a later one; None if there was none."""
        if path not in self.written:
            return None
        before = sum(at <= since for at, _ in self.written[path])
        letters = self._deaths[path][max(0, before - 1) :]
        return {body for deaths in letters for body, error in deaths if error == error_type}

    def _covered(self, path: str, letter: Any) -> list[tuple[Life, set[int]]]:
        """The lives whose dead lines this letter holds."""
        origin = self._origin(path)
        names = {origin, origin.removesuffix(LINES)} if is_lines(origin) else {origin}
        candidates = [life for name in names for life in self._ledger.lives.get(name, ())]
        return [(life, lines) for life in candidates if (lines := _covers(life, letter))]

    def deleted(self, path: str, now: float, sent_at: float) -> bool:
        """Whether someone could have known better than to delete this letter. Whether its bytes are still somewhere is
        checked at the end.

        Look and delete are two requests: what comes after the look, or while the delete is on its way, is not seen.
        """
        self.deleted_at[path] = now
        is_unseen = self.written[path][-1][0] > sent_at - HEAD_VALID_SECONDS
        if is_unseen:
            self.unstoppable.add(path)
        return not is_unseen

    def replay_put(self, path: str, body: bytes) -> None:
        self._replays[replay_of(path), body] += 1

    def chosen(self, path: str, life: Life) -> None:
        """[P5] Whoever repeats a choice of lines, for whatever reason, makes no second batch of them."""
        origin = self._origin(path).removesuffix(LINES)
        deaths = [
            one for name in (origin, lines_path(origin)) for one in self._ledger.lives.get(name, ()) if one.record
        ]
        for body in life.lines.values():
            batches = self._chosen.setdefault((path, body), set())
            batches.add(life.path)
            if is_batch(origin) and len(batches) > len(deaths):
                self._broken("P5", f"a line of {path} died {len(deaths)} times, and was replayed as {sorted(batches)}")

    def replay_deleted(self, path: str, letter: Any) -> None:
        """[P1] Whoever deletes a letter has replayed it, and not only another one of the same bytes."""
        origin = self._origin(path)
        if UNREADABLE in letter.metadata:
            self._unread(origin, letter)
            return
        if is_lines(origin):
            return  # a part of its lines may have been replayed under other names
        if death := self._death_of(path, letter):
            self._replayed_away.add(death)
        target = (replay_of(origin), letter.body)
        self._replayed[target] += 1
        if self._replayed[target] > self._replays[target]:
            self._broken("P1", f"the letter {path} was deleted, and only its twin was replayed")

    def _death_of(self, path: str, letter: Any) -> tuple[str, str, str] | None:
        """Which death in a group a letter is of; None if S3 could not tell it from another one."""
        origin, facts = self._origin(path), dead_facts(letter.metadata)
        lives = self._ledger.lives.get(origin, ())
        if not is_of_group(origin) or "etag" not in facts or any(life.puts > 1 for life in lives):
            return None
        return origin, facts["etag"], facts.get("enqueued-at", "")

    def _origin(self, path: str) -> str:
        """The message that a letter is of. A name that looks marked may be a producer's own."""
        names = {path, path.removesuffix(LINES)}
        return path if names & self._ledger.lives.keys() else without_mark(path)

    def discard(self, before: Any, after: Any, error_type: str | None) -> None:
        """An operator deleted a letter, or the lines of a batch that died of one error; no others are his to delete."""
        gone = bodies_of(before.body) - (bodies_of(after.body) if after else set())
        dead = [one for line in before.body.splitlines() if (one := DeadLine.from_bytes(line))]
        self.purged |= gone - {one.body for one in dead if error_type not in (None, one.failure.type)}

    def check_complete(self, life: Life, record: Record) -> None:
        """[P1] [P3] Every line of a message that is deleted is done or a dead letter, and not both."""
        if record.failure and record.failure.type == "MessageVanished":
            return
        lines = life.lines
        done = int((record.lines or {}).get("completed", 0))
        missing = set(lines) - life.lettered
        alike = self._ledger.alike(life)
        if len(missing) != done:
            if life.was_leased and any(one.record for one in alike if one is not life):
                life.end = "merged"
                return
            self._broken("P1", f"{life.path}: {done} of {len(lines)} done, {len(life.lettered)} dead letters")
        one_message, since = self._ledger.alike_since(life)
        if any(not any(one.succeeded(line, since) for one in one_message) for line in missing):
            self._broken("P1", f"{life.path}: a line is neither done nor a dead letter")

    def check_kept(self, world: World, root: str, life: Life, line: int) -> None:
        """[P1] What died lies in `dead/`, on its own or with the rest of its batch, unless it was replayed since, or
        deleted for good by an operator.

        Also if the name was PUT anew and died again: no letter is ever overwritten.
        """
        body = life.lines[line]
        if body in self.purged:
            return
        names = {life.path, lines_path(life.path)} if is_batch(life.path) else {life.path}
        for path in [path for path in self.written if self._origin(path) in names]:
            writes = [at for at, written in self.written[path] if body in bodies_of(written)]
            if not any(at >= life.recorded_at for at in writes):
                continue
            letter = world.objects.get(f"{root}dead/{path}")
            is_there = letter and body in bodies_of(letter.body)
            if is_there or path in self.unstoppable or self._is_replayed(path, body, life):
                return
        self._broken("P1", f"{life.path} line {line} is dead, and neither its letter nor a replay of it is there")

    def keep(self, world: World, root: str, life: Life) -> bool:
        """Whether equal bytes that died lie in `dead/` for this life, too: under its name, or, beside another letter,
        under a marked one that was written since it was PUT. Or an operator has deleted them for good.
        """
        if self.purged >= {*life.lines.values()} or f"{root}dead/{life.path}" in world.objects:
            return True
        return any(
            letter.body == life.body and self.written[path][-1][0] >= life.last_put_at
            for path in self.written
            if self._origin(path) == life.path and (letter := world.objects.get(f"{root}dead/{path}"))
        )

    def _is_replayed(self, path: str, body: bytes, life: Life) -> bool:
        """As the letter, or as a batch of some of its lines, whose name begins with the batch's."""
        target = replay_of(self._origin(path))
        stem = target.removesuffix(LINES).removesuffix(".ndjson")
        replays = [
            one
            for name, lives in self._ledger.lives.items()
            if name == target
            or (partition_of(name) and replay_of(name) == target)
            or (is_lines(target) and name.startswith(f"{stem}-"))
            for one in lives
        ]
        bodies = {body} | self.edited.get((target, body), set())
        return any(one.last_put_at >= life.recorded_at and bodies & {*one.lines.values()} for one in replays)


def is_of_group(path: str) -> bool:
    partition = partition_of(path)
    return bool(partition) and is_ordered(partition)


def replay_of(path: str) -> str:
    """Where a replay of this message goes: to its name, or under some name into its group."""
    return partition_path(partition_of(path)) if is_of_group(path) else f"messages/{name_of(path)}"


def _deaths(letter: Any, covered: list[tuple[Life, set[int]]]) -> set[tuple[bytes, str]]:
    """What a letter holds, with its error: each line of a batch has its own, and what died as a whole the letter's."""
    facts = dead_facts(letter.metadata)
    if "lines" not in facts:
        return {(life.lines[line], facts["error-type"]) for life, lines in covered for line in lines}
    dead = [one for line in letter.body.splitlines() if (one := DeadLine.from_bytes(line))]
    return {(one.body, one.failure.type) for one in dead}


def _covers(life: Life, stored: Any) -> set[int]:
    record = life.record
    if record is None or not (record.outcome == "dead" or record.dead_lines):
        return set()
    if UNREADABLE in stored.metadata:
        return set(life.lines)  # an empty letter that stands for what could not be read
    if not is_batch(life.path) or stored.body == life.body:
        return set(life.lines) if stored.body == life.body else set()
    dead = [one for line in stored.body.splitlines() if (one := DeadLine.from_bytes(line))]
    return {one.number for one in dead if life.lines.get(one.number) == one.body}


def bodies_of(letter: bytes) -> set[bytes]:
    """The messages that a letter holds: itself, or the lines of a batch, as they were or as they died."""
    lines = letter.splitlines()
    dead = [dead.body for line in lines if (dead := DeadLine.from_bytes(line))]
    return set(dead) if dead else {letter, *lines}
