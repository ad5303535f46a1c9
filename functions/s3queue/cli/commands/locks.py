"""locks list | why | break: who holds a lock, why, and how to free it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName, Yes
from s3queue.cli.command import BAD, command, group, program
from s3queue.cli.output import table
from s3queue.cli.session import Session, shifted
from s3queue.cli.words import age, when
from s3queue.encoding import format_instant
from s3queue.errors import QueueError
from s3queue.protocol.locks import LockState, break_lock, list_locks, read_lock
from s3queue.queue import Queue

locks = group("Locks of a queue: who holds them, and since when.")
program.add_typer(locks, name="locks", rich_help_panel="Work")
LockName = Annotated[str | None, typer.Argument(metavar="NAME", help="The lock's name, as locks list shows it.")]


def lock_document(lock: LockState) -> dict[str, Any]:
    return {
        "name": lock.name,
        "state": lock.state,
        "owner": lock.owner,
        "token": lock.token,
        "since_at": format_instant(lock.since_at),
        "ttl_seconds": lock.ttl.total_seconds(),
    }


@command(locks, "locks list orders", name="list")
def list_(ctx: typer.Context, queue: QueueName = None) -> None:
    """List every lock, held or free. A lock that was used is kept for a day, because of its token.

    JSON: a list of name, state (held, free, stale, unreadable), owner, token, since_at, ttl_seconds.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    now = opened.store.list(opened.keys.prefix("locks"), limit=1).at
    found = list(list_locks(opened.store, opened.keys))
    rows = [
        [one.name, one.state, one.owner or "-", str(one.token), when(one.since_at, now), age(one.ttl)] for one in found
    ]
    session.answer(
        [lock_document(one) for one in found],
        table(["~lock", "state", "~owner", ">token", "since", ">ttl"], rows),
    )
    if not found:
        session.note(f"{opened.name} has no lock")


@command(locks, "locks why orders sweeper")
def why(ctx: typer.Context, queue: QueueName = None, name: LockName = None) -> None:
    """Explain why a lock can or cannot be acquired now, and what to do about it.

    JSON: queue, name, state, owner, token, since_at, ttl_seconds, why.
    """
    session = Session.of(ctx)
    where, wanted = shifted(session, queue, name, "the lock's NAME")
    opened = session.queue(where)
    found = read_lock(opened.store, opened.keys.lock(wanted))
    if found is None:
        document = {"name": wanted, "state": "free", "owner": "", "token": 0, "since_at": None, "ttl_seconds": None}
        sentence = "free: it was never used, or not for a day"
    else:
        document, sentence = lock_document(found), _why(opened, found)
    session.answer({"queue": opened.name} | document | {"why": sentence}, f"{wanted}: {sentence}")


def _why(queue: Queue, lock: LockState) -> str:
    now = queue.store.list(queue.keys.lock(lock.name), limit=1).at
    if lock.state == "held":
        return (
            f"held by {lock.owner} since {when(lock.since_at, now)}, token {lock.token}; it becomes free when its "
            f"holder has not renewed it for {age(lock.ttl)}. If the holder is gone for good: s3queue locks break"
        )
    if lock.state == "stale":
        return f"stale: {lock.owner} has not renewed it within its ttl of {age(lock.ttl)}; the next one takes it over"
    if lock.state == "free":
        return f"free: released {when(lock.since_at, now)}; the next token is {lock.token + 1}"
    return "unreadable: s3queue did not write it; it is taken over once it is older than the new holder's ttl"


@command(locks, "locks break orders monthly-report --yes", name="break")
def break_(ctx: typer.Context, queue: QueueName = None, name: LockName = None, yes: Yes = False) -> None:
    """Free a lock by force, if its holder is gone. If the holder is alive, it finds out at its next renewal.

    JSON: queue, name, state (what it was), owner, token, since_at, ttl_seconds, broken.
    """
    session = Session.of(ctx)
    where, wanted = shifted(session, queue, name, "the lock's NAME")
    opened = session.queue(where)
    key = opened.keys.lock(wanted)
    found = read_lock(opened.store, key)
    if found is None:
        raise QueueError(f"{opened.name} has no lock {wanted!r}; s3queue locks list {opened.name} shows all locks")
    is_free = found.state == "free"
    if not is_free:
        owner = found.owner or "unknown"
        session.confirm(f"Break {wanted}, {found.state}, owned by {owner}?", yes=yes)
        found = break_lock(opened.store, key) or found
    said = "is already free" if is_free else f"is free now; it was {found.state}, owned by {found.owner or 'unknown'}"
    session.done(
        {"queue": opened.name} | lock_document(found) | {"broken": not is_free}, f"{wanted} of {opened.name} {said}"
    )
    if is_free:
        raise typer.Exit(BAD)
