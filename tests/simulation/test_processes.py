"""The shipped parts as real processes behind a faulty proxy: the shorter form of proof part 4, and its judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from s3queue import DeadLetters, Queue, QueueSettings, connect
from simulation.proof import run_rounds
from simulation.real import rounds
from simulation.real.claims import (
    AFTER_A_FAULT,
    conflicting_outcomes,
    double_live_leases,
    redeliveries,
    runs_after_the_end,
    runs_beyond_the_first,
    starts_beyond,
    threads_that_died,
)
from simulation.real.history import Json
from simulation.real.roles import _cancelled
from simulation.real.torment import ALWAYS
from simulation.real.verdict import judge
from support.fault_proxy import FAULTS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["boto3", "direct"])
def test_nothing_is_lost_when_http_fails_and_processes_are_killed(store: str) -> None:  # [P1] [P2] [P3] [P4] [P5] [P6]
    done = rounds.run(9.0, store=store)

    assert done.verdict.details == []
    counts = done.verdict.counts
    assert counts["enqueued"] == counts["completed"] + counts["dead"] + counts["cancelled"] > 20
    # A run in which nothing went wrong would prove nothing.
    assert [name for name in FAULTS if not done.faults[name]] == []
    assert [name for name in ALWAYS if not done.torments[name]] == []


def test_a_round_that_breaks_off_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server cannot start, half an hour would be a hundred thousand rounds, and each leaves a folder."""

    def breaks_off(seconds: float, *, store: str, seed: int, calm_kills: int) -> rounds.Round:
        done = rounds.Round(store, seed)
        done.verdict.broken("unexpected", ["the round broke off"])
        return done

    monkeypatch.setattr(rounds, "run", breaks_off)

    assert run_rounds("direct", 1800.0).cases == 1


# The judge


def _held(path: str, fence: str, pid: int, at: float, until: float, owner: str = "") -> Json:
    return {"event": "held", "path": path, "fence": fence, "pid": pid, "at": at, "until": until, "owner": owner}


def test_the_judge_sees_two_live_leases() -> None:
    events = [_held("a", "1-x", 1, at=0.0, until=3.0), _held("a", "2-y", 2, at=2.9, until=5.9)]

    assert len(double_live_leases(events)) == 1


def test_the_judge_knows_a_claim_whose_answer_came_too_late_to_be_held() -> None:
    late = _held("a", "1-x", 1, at=3.5, until=3.49)
    events = [_held("a", "2-y", 2, at=3.0, until=5.0), late, _held("a", "3-z", 3, at=4.0, until=7.0)]

    assert double_live_leases(events[:2]) == []
    assert len(double_live_leases(events)) == 1


@pytest.mark.parametrize(
    "between",
    [
        [],
        [{"event": "given up", "path": "a", "fence": "1-x", "pid": 1, "at": 2.0}],
        [{"event": "killed", "pid": 1, "at": 2.0}],
        [{"event": "crashes", "pid": 1, "at": 2.0}],
        # Its process ends it; or it stood still until long after the deadline, and ends it then.
        [_held("a", "1-x", 1, at=2.0, until=2.0)],
        [_held("a", "1-x", 1, at=2.0, until=2.05), _held("a", "1-x", 1, at=8.0, until=8.0)],
    ],
)
def test_the_judge_lets_a_lease_follow_one_that_is_over(between: list[Json]) -> None:
    start = 3.1 if not between else 2.1
    events = [_held("a", "1-x", 1, at=0.0, until=3.0), *between, _held("a", "2-y", 2, at=start, until=9.0)]

    assert double_live_leases(events) == []


#: A message whose second claim finds no record because S3 does not answer; then it is claimed once more.
GIVEN_BACK = """
import contextlib, sys
from s3queue import Queue, QueueSettings, Unavailable
from s3queue.stores.memory import MemoryStore
from simulation.real import history, observed
from support.manual_clock import ManualClock

clock, failing = ManualClock(), []
def around(operation, key, perform):
    if failing and operation == "get" and key.startswith("orders/records/"):
        raise Unavailable("503")
    return perform()
store = MemoryStore(clock=clock, around=around)
queue = Queue(store=store, name="orders", settings=QueueSettings.of(retry_base=1), clock=clock)
history.begin(sys.argv[1], "worker")
observed.observe()
path = queue.enqueue(b"x")
queue.fail(queue.claim(path), "broken", retry_after=1)
clock.advance(5)
failing.append(True)
with contextlib.suppress(Unavailable):
    queue.claim_next()
failing.clear()
clock.advance(2)
(claim,) = queue.claim_next()
assert claim.attempt == 2
"""


def test_a_claim_that_is_given_back_before_a_handler_is_called_is_told_as_given_up(tmp_path: Path) -> None:
    """In a process of its own: it changes classes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", GIVEN_BACK, str(tmp_path)], env=environment, check=True)
    (found,) = tmp_path.glob("*.history")
    events = [json.loads(line) for line in found.read_text().splitlines()]

    assert len({event["fence"] for event in events if event["event"] == "held"}) == 3
    assert double_live_leases(events) == []


def test_the_judge_sees_two_drivers_of_one_message_but_no_launcher() -> None:
    launched, adopted = _held("a", "1-x", 1, 0.0, 3.0, "run-1"), _held("a", "1-y", 2, 1.0, 4.0, "run-1")

    assert double_live_leases([{"event": "drives", "pid": 2, "at": 0.5}, launched, adopted]) == []
    drive = [{"event": "drives", "pid": pid, "at": 0.0} for pid in (1, 2)]
    assert len(double_live_leases([*drive, launched, adopted])) == 1


@pytest.mark.parametrize("at", [2.0, 4.5])
def test_the_judge_sees_a_lease_that_was_kept_by_a_heartbeat(at: float) -> None:
    events = [
        _held("a", "1-x", 1, at=0.0, until=3.0),
        _held("a", "1-x", 1, at=at, until=at + 3.0),
        _held("a", "2-y", 2, at=4.0, until=9.0),
    ]

    assert len(double_live_leases(events)) == 1


def _recorded(at: float, nonce: str = "1", **fields: Any) -> Json:
    told = {"event": "recorded", "queue": "q", "path": "a", "generation": ["e", "t"], "outcome": "completed"}
    return told | {"alive": True, "nonce": nonce, "at": at, "pid": 1} | fields


def _start(fence: str, pid: int, at: float) -> Json:
    told = {"event": "start", "queue": "q", "id": "i", "path": "a", "line": 0, "generation": ["e", "t"]}
    return told | {"fence": fence, "pid": pid, "at": at}


def test_the_judge_sees_two_outcomes_of_one_message() -> None:
    assert conflicting_outcomes([_recorded(1.0), _recorded(2.0)]) == []
    assert len(conflicting_outcomes([_recorded(1.0), _recorded(2.0, nonce="2")])) == 1


def test_the_judge_sees_a_handler_that_begins_after_the_end() -> None:
    assert runs_after_the_end([_start("1", 1, 0.0), _recorded(1.0)], set()) == []
    assert len(runs_after_the_end([_recorded(1.0), _start("2", 2, 2.0)], set())) == 1
    # A zombie's record counts, but the one who holds the message cannot know of it.
    assert runs_after_the_end([_recorded(1.0, alive=False), _start("2", 2, 2.0)], set()) == []
    assert runs_after_the_end([_recorded(1.0), _start("2", 2, 2.0)], {("q", "a")}) == []


def test_the_judge_sees_a_handler_that_begins_too_often() -> None:
    starts = [_start(str(number), 1, float(number)) for number in range(3)]

    assert starts_beyond(starts, 3, set()) == []
    assert len(starts_beyond(starts, 2, set())) == 1


def _thread(what: str, at: float, role: str = "heartbeat", pid: int = 1) -> Json:
    return {"event": f"thread {what}", "thread": role, "pid": pid, "at": at}


def test_the_judge_sees_a_thread_that_died_of_an_error() -> None:
    broke, later = _thread("broke", 1.0), _start("1", 1, 30.0)

    assert len(threads_that_died([broke, later])) == 1
    assert threads_that_died([broke, _thread("went on", 2.0), later]) == []
    assert len(threads_that_died([broke, _thread("went on", 2.0, role="sweeping"), later])) == 1
    # It was killed, or stopped, soon after: nobody can tell.
    assert threads_that_died([broke, _start("1", 1, 5.0), {"event": "killed", "pid": 1, "at": 30.0}]) == []


def test_the_judge_says_why_a_handler_ran_again() -> None:
    events = [
        _start("1", 1, 0.0),
        {"event": "killed", "pid": 1, "at": 1.0},
        _start("2", 2, 6.0),
        {"event": "raised", "path": "a", "line": 0, "fence": "2", "pid": 2, "at": 6.5},
        _start("3", 2, 8.0),
        {"event": "paused", "pid": 2, "at": 8.1},
        _start("4", 3, 15.0),
        _start("5", 3, 15.1),
    ]

    assert runs_beyond_the_first(events) == {
        "its process was killed": 1,
        "it failed, as planned": 1,
        "its process was paused": 1,
        AFTER_A_FAULT: 1,
    }
    assert redeliveries(events, "q") == [5.0]


class _Told:
    """A queue in memory, and a history of it."""

    def __init__(self, name: str) -> None:
        self.queue: Queue = connect(f"memory://{name}/q", settings=QueueSettings.of(max_attempts=1))
        self.events: list[Json] = []

    def enqueue(self, id: str, status: str = "ok", fate: str = "fine", **options: Any) -> str:
        body = {"id": id, "fate": fate}
        call = {"call": str(len(self.events)), "pid": 1, "at": float(len(self.events))}
        told = {"operation": "enqueue", "queue": "q", "bodies": [body], "name": options.get("name")}
        path = self.queue.enqueue(body, **options)
        self.events += [call | told | {"event": "invoked"}, call | {"event": status, "result": path}]
        return path

    def run(self, path: str, *, complete: bool = True, told: bool = True) -> None:
        claim = self.queue.claim(path)
        assert claim
        id = json.loads(claim.message.body)["id"]
        if told:
            self.events.append(_start("1", 1, float(len(self.events))) | {"id": id, "path": path})
        if complete:
            self.queue.complete(claim, id)
        else:
            self.queue.fail(claim, ValueError("poison"))

    def cancel(self, path: str, *ids: str, says: str = "ok") -> None:
        at = float(len(self.events))
        asked = {"call": str(at), "pid": 1, "operation": "cancel", "queue": "q", "path": path, "ids": list(ids)}
        self.events += [asked | {"event": "invoked", "at": at}]
        self.events += [asked | {"event": says, "result": _cancelled(self.queue, path), "at": at + 0.5}]

    def verdict(self) -> dict[str, int]:
        counts = judge(self.events, {"q": self.queue}).counts
        return {name: counts[name] for name in ("enqueued", "completed", "dead", "lost", "unexpected")}


def test_the_judge_accounts_for_every_acknowledged_message() -> None:
    told = _Told("accounted")
    told.run(told.enqueue("1"))
    told.run(told.enqueue("2", fate="poison"), complete=False)
    told.enqueue("3")
    told.queue.store.delete(told.queue.keys.message(told.enqueue("4")))
    told.queue.store.delete(told.queue.keys.message(told.enqueue("5", "unknown")))

    verdict = told.verdict()

    assert verdict["enqueued"] == 4
    assert (verdict["completed"], verdict["dead"]) == (1, 1)
    assert verdict["lost"] == 2, "the third is left behind, the fourth is gone, the fifth was never acknowledged"
    assert verdict["unexpected"] == 1, "the third is left behind"


def test_the_judge_asks_for_the_last_of_what_was_put_under_one_name() -> None:
    told = _Told("names")
    for number in range(3):
        path = told.enqueue(str(number), name="again.json")
    told.run(path)

    assert told.verdict() == {"enqueued": 1, "completed": 1, "dead": 0, "lost": 0, "unexpected": 0}

    told.queue.store.delete(told.queue.keys.record(path))
    assert told.verdict()["lost"] == 1


def test_the_judge_sees_what_is_dead_and_never_started_or_had_no_reason_to_die() -> None:
    told = _Told("dead")
    told.run(told.enqueue("1", fate="poison"), complete=False, told=False)
    told.run(told.enqueue("2"), complete=False)
    told.run(told.enqueue("3", fate="poison"))

    assert told.verdict()["unexpected"] == 3


def test_the_judge_sees_a_letter_that_is_gone() -> None:
    told = _Told("letters")
    path = told.enqueue("1", fate="poison")
    told.run(path, complete=False)
    assert told.verdict()["lost"] == 0

    DeadLetters(told.queue).delete(path)
    assert told.verdict()["lost"] == 1


def test_the_judge_accounts_for_what_was_cancelled_whether_its_canceller_heard_of_it_or_not() -> None:
    told = _Told("cancelled")
    told.cancel(told.enqueue("1"), "1")
    told.cancel(told.enqueue("2"), "2", says="unknown")

    assert told.verdict() == {"enqueued": 2, "completed": 0, "dead": 0, "lost": 0, "unexpected": 0}
    assert judge(told.events, {"q": told.queue}).counts["cancelled"] == 2


def test_the_judge_sees_a_message_that_nobody_cancelled() -> None:
    told = _Told("cancelled-by-nobody")
    told.queue.cancel(told.enqueue("1"))

    assert (told.verdict()["lost"], told.verdict()["unexpected"]) == (1, 1)


def test_the_judge_sees_a_cancelled_message_that_starts_or_has_another_outcome() -> None:
    told = _Told("cancelled-in-vain")
    path = told.enqueue("1")
    told.cancel(path, "1")
    told.queue.store.delete(told.queue.keys.record(path))
    assert judge(told.events, {"q": told.queue}).counts["duplicate outcomes"] == 1

    withdrawn = told.enqueue("2")
    told.cancel(withdrawn, "2")
    assert told.verdict()["unexpected"] == 0
    generation = told.events[-1]["result"]["generation"]
    told.events.append(_start("1", 1, 99.0) | {"id": "2", "path": withdrawn, "generation": generation})
    assert told.verdict()["unexpected"] == 1
