"""Tokens of a rate: how they are taken, what a claim without one leaves behind, and what is done about garbage."""

from __future__ import annotations

import json

import pytest

from s3queue import InvalidRequest, Unavailable, define
from s3queue.documents.limit_document import LimitDocument
from s3queue.flow.limiter import RateLimiter
from s3queue.keys import Keys
from s3queue.limits import parse_rate
from s3queue.paths import rate_key_of
from s3queue.settings import QueueSettings

LIMIT = "orders/limits/queue.json"


@pytest.mark.parametrize(
    "rate", ["0/min", "-1/min", "100", "100/ms", "100/0.5s", "1.5/min", "", "many/min", 100, "1/day"]
)
def test_a_rate_that_is_none_says_what_is_allowed(rate):
    with pytest.raises(InvalidRequest, match="s, min or hour"):
        define("orders", rate=rate)


def test_a_rate_and_its_key_are_read_back_and_switched_off(bench):
    settings = QueueSettings.of(rate="100/min", rate_key="folder")
    assert QueueSettings().with_overrides(settings.to_json()) == settings
    assert settings.with_overrides({"rate": "off"}).rate is None
    queue = bench.queue()
    queue.configure(rate="5/hour")
    assert json.loads(bench.read("orders/queue.json")) == {"rate": "5/hour"}
    assert bench.queue(rate="1/s").configure(rate="off").rate is None


def test_spark_and_limits_are_refused_together():
    with pytest.raises(InvalidRequest, match="cannot have a rate or a breaker"):
        QueueSettings.of(engine="spark", rate="1/s")
    with pytest.raises(InvalidRequest, match="rate_key"):
        QueueSettings.of(rate="1/s", rate_key="customer")


def test_a_message_without_a_token_stays_pending_and_uses_no_attempt(bench):
    queue = bench.queue(rate="2/min")
    paths = [queue.enqueue(b"{}") for _ in range(3)]

    claims = [queue.claim(path) for path in paths]

    assert [claim is not None for claim in claims] == [True, True, False]
    assert not bench.keys(f"orders/leases/{paths[2]}")
    assert 60 < queue.held_for() < 70
    bench.store.take()
    assert queue.claim(paths[2]) is None
    assert bench.store.take() == {}, "what is known to be in vain costs nothing"
    bench.clock.advance(queue.held_for())
    claim = queue.claim(paths[2])
    assert claim
    assert claim.attempt == 1


def test_a_lost_claim_gives_its_token_back(bench):
    queue, rival = bench.queue(rate="1/min"), bench.queue(worker_id="rival")
    taken, free = queue.enqueue(b"{}"), queue.enqueue(b"{}")
    assert rival.claim(taken)

    assert queue.claim(taken) is None
    assert queue.claim(free)


def test_a_token_that_is_used_too_late_does_not_count_and_the_claim_is_undone(bench):
    queue = bench.queue(rate="2/min")
    path, other = queue.enqueue(b"{}"), queue.enqueue(b"{}")

    def slow(operation, key, perform):
        if operation == "put" and "/leases/" in key:
            bench.clock.advance(5)
        return perform()

    bench.around = slow
    assert queue.claim(path) is None
    bench.around = None
    assert not bench.keys("orders/leases/")
    # It was never used, so it is given back.
    assert queue.claim(path)
    assert queue.claim(other)
    assert queue.claim(queue.enqueue(b"{}")) is None


def test_a_token_does_not_count_for_a_lease_that_is_written_anew_too_late(bench):
    """The name was PUT anew before the message was read, and reading it took long."""
    queue = bench.queue(rate="1/s")
    path = queue.enqueue({"a": 1}, name="x")
    (seen,) = bench.memory.list("orders/messages/").objects

    def slow(operation, key, perform):
        answer = perform()
        if operation == "get" and key.endswith(path):
            bench.clock.advance(9)
        return answer

    queue.enqueue({"a": 2}, name="x")
    bench.around = slow
    assert queue.claim(path, etag=seen.etag) is None
    bench.around = None
    assert bench.keys("orders/leases/") == []
    assert queue.claim(path).attempt == 1


def test_what_one_process_did_not_use_is_given_back_with_its_next_tokens(bench):
    queue = bench.queue(rate="100/min", visibility_timeout=600)
    for _ in range(40):
        queue.enqueue(b"{}")
    queue.claim_next(16)
    bench.clock.advance(30)
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) > 16

    queue.claim_next(1)

    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) <= 16 + 10
    queue.claim_next(16)
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"][:-1]) == 16


@pytest.mark.parametrize(
    "garbage", [b"", b"{}", b'{"v":1,"unit_seconds":0}', b'{"v":1,"unit_seconds":1,"grants":[[1,-2]]}']
)
def test_a_limit_that_cannot_be_read_counts_as_used_up_for_one_window(bench, garbage):
    queue = bench.queue(rate="2/min")
    path = queue.enqueue(b"{}")
    bench.put(LIMIT, garbage)

    assert queue.claim(path) is None
    bench.clock.advance(queue.held_for())
    assert queue.claim(path)


def test_what_is_given_back_is_granted_once(bench):
    queue = bench.queue(rate="100/min", visibility_timeout=600)
    for _ in range(120):
        queue.enqueue(b"{}")
    assert len(queue.claim_next(16)) == 16
    bench.clock.advance(30)

    assert len(queue.claim_next(120)) == 84


def test_tokens_are_not_given_back_again_if_another_worker_wrote_over_the_grant_whose_answer_was_lost(bench):
    queue, rival = (bench.queue(rate="100/min", worker_id=name, visibility_timeout=600) for name in ("one", "rival"))
    for _ in range(400):
        queue.enqueue(b"{}")
    # Each has nine tokens left, or more, of one second.
    assert [len(one.claim_next(16)) for one in (rival, queue)] == [16, 16]
    bench.clock.advance(5)
    unanswered = []

    def overtake(operation, key, perform):
        answer = perform()
        if operation == "put" and key == LIMIT and not unanswered:
            unanswered.append(key)
            assert len(rival.claim_next(1)) == 1
            raise Unavailable("the answer was lost")
        return answer

    bench.around = overtake
    started = 33 + len(queue.claim_next(100)) + len(rival.claim_next(100))

    assert unanswered
    # What the unanswered write has granted is lost, and nothing else.
    assert 84 <= started <= 100
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) == 100


def _limiter(bench, rate):
    return RateLimiter(bench.queue(rate=rate)), parse_rate(rate)


def _during(bench, operation, act) -> None:
    """Another thread acts while the next such request for the limit is on its way."""

    def around(performed, key, perform):
        answer = perform()
        if performed == operation and key == LIMIT:
            bench.around = None
            act()
        return answer

    bench.around = around


def test_the_last_token_that_comes_back_while_another_thread_asks_is_not_lost(bench):
    limiter, rate = _limiter(bench, "1/hour")
    token = limiter.take("messages/a", rate)
    bench.clock.advance(2)
    _during(bench, "get", token.cancel)

    assert limiter.take("messages/b", rate)


def test_a_token_that_comes_back_while_another_one_is_granted_is_granted_anew(bench):
    limiter, rate = _limiter(bench, "2/hour")
    token = limiter.take("messages/a", rate)
    bench.clock.advance(2)
    _during(bench, "put", token.cancel)

    assert limiter.take("messages/b", rate)
    assert limiter.take("messages/c", rate)
    assert limiter.take("messages/d", rate) is None


@pytest.mark.parametrize("later", [0, 400])
def test_a_token_that_comes_back_after_others_were_granted_is_granted_anew(bench, later):
    limiter, rate = _limiter(bench, "2/hour")
    token = limiter.take("messages/a", rate)
    bench.clock.advance(2)
    assert limiter.take("messages/b", rate)
    assert limiter.take("messages/c", rate) is None
    bench.clock.advance(later)
    token.cancel()

    assert limiter.wait("messages/c") == 0
    assert limiter.take("messages/c", rate)
    assert limiter.take("messages/d", rate) is None


def test_a_token_that_comes_back_too_late_while_another_thread_asks_is_granted_anew(bench):
    limiter, rate = _limiter(bench, "1/hour")
    token = limiter.take("messages/a", rate)
    bench.clock.advance(400)
    _during(bench, "get", token.cancel)

    assert limiter.take("messages/b", rate) is None
    assert limiter.wait("messages/b") == 0
    assert limiter.take("messages/b", rate)


def test_a_token_of_a_former_rate_does_not_come_back(bench):
    limiter, rate = _limiter(bench, "2/hour")
    token = limiter.take("messages/a", rate)
    limiter._queue.settings = limiter._queue.settings.with_overrides({"rate": "3/hour"})
    rate = parse_rate("3/hour")
    assert limiter.take("messages/b", rate)
    token.cancel()

    assert limiter.take("messages/c", rate)
    assert limiter.take("messages/d", rate) is None


def test_unused_tokens_are_not_lost_if_the_limit_cannot_be_read(bench):
    limiter, rate = _limiter(bench, "100/hour")
    for _ in range(16):
        assert limiter.take("messages/a", rate)
    granted = sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"])
    assert granted > 16, "some are in hand"
    bench.clock.advance(400)
    _during(bench, "get", _no_answer)
    assert limiter.take("messages/a", rate) is None
    bench.clock.advance(2)

    taken = 16
    while limiter.take("messages/a", rate):
        taken += 1
    assert taken == 100


def _no_answer() -> None:
    raise Unavailable("no answer")


def test_tokens_that_were_granted_too_late_to_be_used_are_given_back(bench):
    limiter, rate = _limiter(bench, "1/min")
    bench.clock.advance(5)
    paused = []

    def slow(operation, key, perform):
        if operation == "put" and key == LIMIT and not paused:
            paused.append(key)
            bench.clock.advance(10)
        return perform()

    bench.around = slow
    assert limiter.take("messages/a", rate)
    assert sum(tokens for _, tokens in json.loads(bench.read(LIMIT))["grants"]) == 1


@pytest.mark.parametrize("rate", ["60/min", "60/hour"])
@pytest.mark.parametrize("ahead", [1.02, 0.5, 0.05])
def test_grants_of_the_future_close_a_queue_for_one_window(bench, rate, ahead):
    queue, found = bench.queue(rate=rate), parse_rate(rate)
    path = queue.enqueue(b"{}")
    at = int(bench.clock.now().timestamp() + ahead * found.window)
    document = LimitDocument(found.unit, ((at // found.unit, 0),))
    assert document.latest > bench.clock.now().timestamp() + 2
    bench.put(LIMIT, document.to_bytes("forged"))
    began = bench.clock.monotonic()

    while not queue.claim(path):
        bench.clock.advance(max(queue.held_for(), 0.05))
    assert bench.clock.monotonic() - began <= found.kept
    puts = [key for operation, key, *_ in bench.store.log if operation == "put" and key == LIMIT]
    assert len(puts) <= 5, "nobody tries in vain, again and again, to grant what nobody can use yet"


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_grant_of_an_estimate_that_is_ahead_is_no_forgery(bench, ahead):
    queue = bench.queue(rate="2/min")
    path = queue.enqueue(b"{}")
    at = int(bench.clock.now().timestamp()) + ahead
    bench.put(LIMIT, LimitDocument(1, ((at, 1),)).to_bytes("another's"))
    began = bench.clock.monotonic()

    while not queue.claim(path):
        bench.clock.advance(max(queue.held_for(), 0.05))
    assert bench.clock.monotonic() - began <= 3


def test_grants_of_the_future_do_not_close_a_queue_for_good(bench):
    queue = bench.queue(rate="2/min")
    path = queue.enqueue(b"{}")
    bench.put(LIMIT, b'{"v":1,"unit_seconds":1,"grants":[[99999999999,1]]}')

    assert queue.claim(path) is None
    bench.clock.advance(queue.held_for())
    assert queue.claim(path)


def test_a_rate_may_be_changed_while_its_tokens_are_used(bench):
    queue = bench.queue(rate="10/min")
    for _ in range(20):
        queue.enqueue(b"{}")
    assert len(queue.claim_next(20)) == 10

    queue.configure(rate="15/hour")
    bench.clock.advance(queue.held_for())
    assert len(queue.claim_next(20)) == 5


def test_an_old_limit_is_cleaned_up_by_the_sweeper(bench):
    queue = bench.queue(rate="10/min")
    queue.complete(queue.claim(queue.enqueue(b"{}")))
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    assert bench.keys("orders/limits/")

    bench.clock.advance(3 * 3600)
    sweeper.sweep()
    assert not bench.keys("orders/limits/")


def test_a_batch_waits_line_by_line_and_loses_nothing(bench):
    queue = bench.queue(rate="10/min", visibility_timeout=30)
    seen: list[int] = []
    (path,) = queue.enqueue_many([{"n": number} for number in range(25)])
    processor = bench.processor(queue, lambda body: seen.append(body["n"]))

    assert processor.run(path) == "postponed"
    assert seen == list(range(10))
    bench.settle(queue, lambda body: seen.append(body["n"]))
    assert seen == list(range(25))
    assert queue.status(path).record.attempt == 1


def test_the_key_of_a_message_is_the_first_folder_of_its_name():
    assert rate_key_of("messages/customer-42/a") == "customer-42"
    assert rate_key_of("messages/p200/customer-42/a/b") == "customer-42"
    assert rate_key_of("delayed/20261116T101500Z/p001/customer-42/a") == "customer-42"
    assert rate_key_of("messages/a") == rate_key_of("messages/p200/a") == ""
    assert rate_key_of("messages/3f/customer-42/a", shards=64) == "customer-42"
    assert rate_key_of("messages/@=3/customer-42/a") == "customer-42"
    assert rate_key_of("messages/@=3/3f/a", shards=64) == "3f"
    assert rate_key_of("messages/@=3/a") == ""
    assert rate_key_of("messages/@customer-42/a") == "@customer-42"
    assert Keys("orders").limit("a/../b") == "orders/limits/key/a%2F..%2Fb.json"
    assert len(Keys("orders").limit("ü" * 900)) < 200
    assert Keys("orders").limit("ü" * 900) != Keys("orders").limit("ü" * 901)


def test_each_key_has_its_own_tokens(bench):
    queue = bench.queue(rate="1/min", rate_key="folder")
    paths = [queue.enqueue(b"{}", name=name) for name in ("a/1", "a/2", "b/1", "c")]

    assert [queue.claim(path) is not None for path in paths] == [True, False, True, True]
    assert bench.keys("orders/limits/") == [
        "orders/limits/key/a.json",
        "orders/limits/key/b.json",
        "orders/limits/queue.json",
    ]


def test_a_rate_of_every_window_is_parsed():
    assert [(rate.calls, rate.window) for rate in map(parse_rate, ("5/s", "100/min", " 3 / hour "))] == [
        (5, 1),
        (100, 60),
        (3, 3600),
    ]
