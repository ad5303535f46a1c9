"""The judge of a run: the history of the calls, held against what lies in the bucket when everything is quiet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from s3queue import Queue

from .bucket import Found, examine
from .claims import (
    conflicting_outcomes,
    double_live_leases,
    redeliveries,
    runs_after_the_end,
    runs_beyond_the_first,
    starts_beyond,
    threads_that_died,
    waits,
)
from .history import Json
from .work import DEADLY

MAX_ATTEMPTS = 5
#: Why a message may be dead that has nothing wrong with it: its attempts were interrupted.
INTERRUPTED = ("LeaseExpired", "HandlerTimeout", "RunFailed", "RunLost", "MessageVanished")


@dataclass(slots=True)
class Call:
    """One call of a client or an operator."""

    operation: str
    queue: str
    fields: Json
    result: object = None
    status: Literal["ok", "failed", "unknown"] = "unknown"
    answered_at: float = float("inf")

    @property
    def ids(self) -> list[str]:
        return [body["id"] for body in self.fields.get("bodies", ())]


def calls_of(events: list[Json]) -> list[Call]:
    """Every call, in the order of their beginnings. A process that was killed meanwhile left its call unknown."""
    calls: dict[str, Call] = {}
    for event in events:
        if event["event"] == "invoked":
            calls[event["call"]] = Call(event["operation"], event["queue"], event)
        elif event["event"] in ("ok", "failed", "unknown") and event.get("call") in calls:
            call = calls[event["call"]]
            call.status, call.result, call.answered_at = event["event"], event.get("result"), event["at"]
    return list(calls.values())


@dataclass
class Verdict:
    """The columns of the proof's table, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    #: Reported, not judged: the machine is noisy. Name → (median, longest), in seconds.
    times: dict[str, tuple[float, float]] = field(default_factory=dict)

    def broken(self, column: str, problems: list[str]) -> None:
        self.counts[column] += len(problems)
        self.details += [f"{column}: {problem}" for problem in problems]


def judge(events: list[Json], queues: Mapping[str, Queue]) -> Verdict:
    verdict = Verdict()
    calls = calls_of(events)
    for call in calls:
        verdict.counts[f"calls {call.status}"] += 1
    started = {(event["queue"], event["id"]) for event in events if event["event"] == "start"}
    repeated = asked_again(calls)
    for name, queue in queues.items():
        found = examine(queue)
        own = [call for call in calls if call.queue == name]
        verdict.broken("unexpected", [f"left behind: {key}" for key in found.left])
        _account(verdict, own, found, events)
        _check_fates(verdict, own, found, started)
        _check_cancellations(verdict, [call for call in own if call.operation == "cancel"], found, events, repeated)
        for kind, seconds in (("redelivered", redeliveries(events, name)), ("first started", waits(events, name))):
            if seconds:
                seconds.sort()
                verdict.times[f"{name} {kind}"] = (seconds[len(seconds) // 2], seconds[-1])
    verdict.broken("duplicate outcomes", conflicting_outcomes(events))
    verdict.broken("double live leases", double_live_leases(events))
    verdict.broken("unexpected", runs_after_the_end(events, repeated))
    verdict.broken("unexpected", starts_beyond(events, MAX_ATTEMPTS, repeated))
    verdict.broken("unexpected", threads_that_died(events))
    verdict.again = runs_beyond_the_first(events)
    return verdict


def asked_again(calls: list[Call]) -> set[tuple[str, str]]:
    """Messages whose bytes were PUT more than once, or may have been, under the same name."""
    repeated = set()
    for call in calls:
        if call.operation == "replay":
            path = call.fields["path"].partition("~")[0].removesuffix(".lines")
            # A delayed message is replayed as one that is due.
            repeated |= {(call.queue, path), (call.queue, f"messages/{path.rpartition('/')[2]}")}
        elif call.fields.get("again") and isinstance(call.result, str):
            repeated.add((call.queue, call.result))
    return repeated


def _account(verdict: Verdict, calls: list[Call], found: Found, events: list[Json]) -> None:
    """[P1] Every acknowledged message has an outcome, or a letter, or is there."""
    cancelled = {
        id
        for call in calls
        if call.operation == "cancel" and _is_cancelled(found, call.fields["path"])
        for id in call.fields["ids"]
    }
    # A name that was PUT anew replaces what was not finished; of those, the last acknowledged one counts, or one after.
    chains: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if not call.operation.startswith("enqueue"):
            continue
        if call.fields.get("name"):
            chains[call.fields["name"]].append(call)
        elif call.status == "ok":
            for id in call.ids:
                _count(verdict, [id], found, is_cancelled=id in cancelled)
    returned = {event["id"] for event in events if event["event"] == "returned"}
    for chain in chains.values():
        last = max((place for place, call in enumerate(chain) if call.status == "ok"), default=None)
        if last is not None:
            ids = [id for call in chain[last:] if call.status != "failed" for id in call.ids]
            # An older letter of that name may have been replayed since, and its record is the one that is left.
            _count(verdict, ids, found, otherwise=bool(returned & set(ids)))


def _count(
    verdict: Verdict, ids: list[str], found: Found, *, is_cancelled: bool = False, otherwise: bool = False
) -> None:
    """One message that was acknowledged, under one of these ids."""
    verdict.counts["enqueued"] += 1
    is_completed = any(id in found.completed for id in ids)
    is_dead = any(id in found.dead for id in ids)
    verdict.counts["completed"] += is_completed or (otherwise and not is_dead)
    verdict.counts["dead"] += is_dead and not is_completed
    verdict.counts["cancelled"] += is_cancelled and not (is_completed or is_dead)
    if not (is_completed or is_dead or is_cancelled or otherwise):
        verdict.broken("lost", [f"{ids} has neither an outcome nor a letter"])


def _check_fates(verdict: Verdict, calls: list[Call], found: Found, started: set[tuple[str, str]]) -> None:
    """Nothing is dead that never started, or that has nothing wrong with it and was not interrupted."""
    bodies = {body["id"]: body for call in calls for body in call.fields.get("bodies", ())}
    replayed = {call.fields["path"] for call in calls if call.operation == "replay"}
    for id, path in found.dead.items():
        fate = bodies[id]["fate"] if id in bodies else ""
        queue = calls[0].queue if calls else ""
        if (queue, id) not in started:
            verdict.broken("unexpected", [f"{queue}/{path} ({id}) is dead and never started"])
        if id in found.completed and path not in replayed:
            verdict.broken("duplicate outcomes", [f"{queue}/{path} ({id}) is completed and dead"])
        record = found.records.get(path.partition("~")[0].removesuffix(".lines"))
        failures = [attempt.failure.type for attempt in record.attempts if attempt.failure] if record else []
        is_dead = record is not None and record.outcome != "cancelled"
        if fate not in DEADLY and is_dead and not set(failures) & set(INTERRUPTED):
            verdict.broken("unexpected", [f"{queue}/{path} ({id}) died of {failures}, and is {fate}"])
    for id, path in found.completed.items():
        if id in bodies and bodies[id]["fate"] in DEADLY:
            verdict.broken("unexpected", [f"{path} ({id}) is {bodies[id]['fate']}, and completed"])
        if id not in bodies:
            verdict.broken("unexpected", [f"{path}: a record of {id!r}, which nobody enqueued"])


def _is_cancelled(found: Found, path: str) -> bool:
    return path in found.records and found.records[path].outcome == "cancelled"


def _check_cancellations(
    verdict: Verdict, calls: list[Call], found: Found, events: list[Json], repeated: set[tuple[str, str]]
) -> None:
    """[P3] What is told to be cancelled is recorded so, and nothing is that nobody cancelled.  [P4] What is told to be
    withdrawn does not start afterwards.
    """
    asked = {call.fields["path"] for call in calls}
    unasked = [path for path in found.records if _is_cancelled(found, path) and path not in asked]
    verdict.broken("unexpected", [f"{path} is cancelled, and nobody asked for it" for path in unasked])
    for call in calls:
        path, told = call.fields["path"], call.result
        if not isinstance(told, dict) or told["outcome"] != "cancelled" or (call.queue, path) in repeated:
            continue
        if not _is_cancelled(found, path):
            verdict.broken("duplicate outcomes", [f"{call.queue}/{path} was told to be cancelled, and is not"])
        later = [
            event
            for event in events
            if told["is_withdrawn"]
            and event["event"] == "start"
            and (event["queue"], event["path"], event["generation"]) == (call.queue, path, told["generation"])
            and event["at"] > call.answered_at
        ]
        verdict.broken("unexpected", [f"{call.queue}/{path} was told to be withdrawn, and starts"] * bool(later))
