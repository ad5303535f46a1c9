"""A rate that is changed while its tokens are used, and limits that another version wrote."""

from __future__ import annotations

import json
import logging

import pytest

from s3queue.documents.limit_document import LimitDocument
from s3queue.flow.gate import QueueGate
from s3queue.limits import parse_rate

LIMIT = "orders/limits/queue.json"


def _fill(queue, count: int) -> None:
    for _ in range(count):
        queue.enqueue(b"{}")


def test_tokens_in_hand_do_not_count_after_the_rate_was_lowered(bench):
    queue = bench.queue(rate="100/min", visibility_timeout=600)
    _fill(queue, 60)
    claimed = len(queue.claim_next(16))
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) > claimed, "some are in hand"

    queue.configure(rate="2/min")

    assert queue.claim_next(10) == []
    bench.clock.advance(queue.held_for())
    assert len(queue.claim_next(10)) == 2


def test_a_lowered_rate_is_kept_by_a_process_that_keeps_its_tokens(bench):
    queue = bench.queue(rate="600/min", visibility_timeout=600)
    _fill(queue, 200)
    assert len(queue.claim_next(100)) == 100
    queue.configure(rate="600/hour")

    later = sum(len(queue.claim_next(1)) for _ in range(50))
    assert later == 50
    bench.clock.advance(60)
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) >= 150


@pytest.mark.parametrize("second", [0, 1, 30, 59])
def test_a_change_from_hours_to_minutes_does_not_close_the_queue(bench, second):
    bench.clock.advance(second)
    queue = bench.queue(rate="60/hour", visibility_timeout=600)
    _fill(queue, 40)
    assert queue.claim_next(1)

    queue.configure(rate="60/min")

    claims = []
    for _ in range(12):
        bench.clock.advance(1)
        claims += queue.claim_next(2)
    assert len(claims) >= 20


def test_a_raised_rate_is_used_at_once_although_the_old_one_had_closed_the_queue(bench):
    queue = bench.queue(rate="1/hour")
    _fill(queue, 5)
    assert len(queue.claim_next(5)) == 1
    assert queue.held_for() > 3000
    path = queue.enqueue(b"{}")

    queue.configure(rate="10/min")

    assert queue.held_for() == 0
    assert (queue.free_at(path) - bench.clock.now()).total_seconds() <= 2
    assert len(queue.claim_next(9)) == 5


def test_grants_are_as_late_as_they_can_have_been_and_none_is_of_the_future():
    hourly, minutely = parse_rate("60/hour"), parse_rate("60/min")
    document = LimitDocument(hourly.unit, ((100, 3), (101, 5)))
    now = 101 * 60 + 20

    found = document.converted(minutely, now)

    assert found.grants == ((100 * 60 + 59, 3), (now, 5))
    assert found.latest <= now
    assert LimitDocument(1, ((6059, 3), (6061, 2), (6079, 1))).converted(hourly, now).grants == ((100, 3), (101, 3))


def test_tokens_of_another_unit_are_not_given_back_for_those_of_others(bench):
    """Taken from another one's grant of the same second, they would let one more go."""
    queue, other = bench.queue(rate="600/hour"), bench.queue(rate="600/hour", worker_id="other")
    _fill(queue, 100)
    queue.claim_next(16)
    for one in (queue, other):
        one.configure(rate="600/min")
    bench.clock.advance(1)
    assert len(other.claim_next(10)) == 10
    before = sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"])
    queue.claim_next(1)

    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) > before


@pytest.mark.parametrize(("rate", "kept"), [("2/s", 5), ("2/min", 70), ("2/hour", 4000)])
def test_a_limit_of_a_newer_format_is_waited_for_as_long_as_its_tokens_can_count(bench, caplog, rate, kept):
    queue = bench.queue(rate=rate)
    path = queue.enqueue(b"{}")
    bench.put(LIMIT, b'{"v":2,"buckets":{}}')
    caplog.set_level(logging.WARNING)

    assert queue.claim(path) is None
    assert "update this worker" in caplog.text
    waits = 0.0
    while not queue.claim(path):
        wait = max(queue.held_for(), 0.1)
        bench.clock.advance(wait)
        waits += wait
        assert waits <= kept
    assert json.loads(bench.read(LIMIT))["v"] == 1


def test_a_newer_version_at_work_is_left_alone(bench):
    queue = bench.queue(rate="2/min")
    path = queue.enqueue(b"{}")
    for number in range(10):
        bench.put(LIMIT, b'{"v":2,"n":%d}' % number)
        bench.clock.advance(30)
        assert queue.claim(path) is None
    assert json.loads(bench.read(LIMIT)) == {"v": 2, "n": 9}


def test_a_line_that_is_too_late_for_its_token_leaves_it_to_another_call(bench):
    queue = bench.queue(rate="100/min", visibility_timeout=600)
    _fill(queue, 40)
    (*_, claim) = queue.claim_next(16)
    bench.clock.advance(3)
    assert not queue.may_call(claim.path), "the token of three seconds ago is good for a claim only"
    bench.clock.advance(27)

    queue.claim_next(1)

    assert json.loads(bench.read(LIMIT))["grants"][0][1] == 16


@pytest.mark.parametrize("decide", ["held_for", "is_stopped", "free_at", "note_call", "note_undecided", "claim"])
def test_a_decision_goes_by_the_limits_that_it_began_with(bench, monkeypatch, decide):
    """Another thread that reads `queue.json` meanwhile switches them off."""
    queue = bench.queue(rate="100/min", breaker={"failures": 3, "pause_seconds": 60})
    _fill(queue, 2)
    first, second = bench.keys("orders/messages/")
    claim = queue.claim(first.removeprefix("orders/"))

    def switched_off(gate: QueueGate) -> bool:
        queue.configure(rate="off", breaker="off")
        queue.follow_limits()
        return True

    monkeypatch.setattr(QueueGate, "__bool__", switched_off, raising=False)
    decisions = {
        "free_at": lambda: queue.free_at(claim.path),
        "note_call": lambda: queue.note_call(claim, "down"),
        "note_undecided": lambda: queue.note_undecided(claim),
        "claim": lambda: queue.claim(second.removeprefix("orders/")),
    }

    decisions.get(decide, getattr(queue, decide))()

    assert not queue.settings.is_limited
