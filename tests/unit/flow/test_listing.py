"""Queue.list: every message under its state, with the time that counts, in pages that miss nothing."""

from __future__ import annotations

import pytest

from s3queue import InvalidRequest, Retry, Worker


@pytest.fixture
def full(bench):
    """A queue with one message in each state: state → path."""
    queue = bench.queue()
    worker = bench.queue(worker_id="worker")
    paths = {"pending": queue.enqueue({}), "delayed": queue.enqueue({}, delay=60)}
    for state in ("processing", "waiting", "completed", "dead", "cancelled"):
        paths[state] = queue.enqueue({"n": state})
    bench.clock.advance(5)
    worker.claim(paths["processing"])
    worker.fail(worker.claim(paths["waiting"]), "later")
    worker.complete(worker.claim(paths["completed"]))
    worker.fail(worker.claim(paths["dead"]), "never", dead=True)
    queue.cancel(paths["cancelled"])
    return paths


@pytest.mark.parametrize("state", ["pending", "delayed", "processing", "waiting", "completed", "dead", "cancelled"])
def test_each_state_lists_its_own_messages(bench, full, state):
    page = bench.queue().list(state)

    assert [(one.path, one.state) for one in page.messages] == [(full[state], state)]
    assert page.next_after is None


def test_rows_tell_what_an_operator_asks_next(bench, full):
    queue = bench.queue()
    (waiting,) = queue.list("waiting").messages
    (processing,) = queue.list("processing").messages
    (pending,) = queue.list("pending").messages
    (delayed,) = queue.list("delayed").messages
    assert (waiting.attempt, waiting.failure.message) == (1, "later")
    assert waiting.due_at > waiting.since
    assert (processing.worker, processing.attempt) == ("worker", 1)
    assert (processing.since - pending.since).total_seconds() == 5
    assert delayed.due_at > bench.clock.now()
    assert (pending.size, pending.due_at) == (2, None)
    assert waiting.to_json()["failure"]["message"] == "later"


@pytest.mark.parametrize("state", ["pending", "waiting", "completed", "dead"])
def test_pages_show_every_message_once(bench, state):
    queue = bench.queue()
    paths = []
    for number in range(11):
        path = queue.enqueue({}, name=f"m{number:02d}")
        # Others in between, which have another state.
        other = queue.enqueue({}, name=f"m{number:02d}x")
        paths.append(path)
        if state == "pending":
            queue.claim(other)
            continue
        claim = queue.claim(path)
        if state == "waiting":
            queue.fail(claim, "later")
        elif state == "completed":
            queue.complete(claim)
        else:
            queue.fail(claim, "no", dead=True)
    found, after = [], ""
    for _ in range(30):
        page = queue.list(state, limit=3, after=after)
        assert len(page.messages) <= 3
        found += [one.path for one in page.messages]
        if page.next_after is None:
            break
        after = page.next_after
    assert found == paths


def test_a_prefix_narrows_it_down(bench):
    queue = bench.queue()
    for name in ("a-1", "a-2", "b-1"):
        queue.enqueue({}, name=name)
    urgent = queue.enqueue({}, priority=200)

    assert [one.path for one in queue.list("pending", prefix="messages/a-").messages] == [
        "messages/a-1",
        "messages/a-2",
    ]
    assert [one.path for one in queue.list("pending", prefix="messages/p200/").messages] == [urgent]
    with pytest.raises(InvalidRequest, match="prefix"):
        queue.list("pending", prefix="delayed/")


@pytest.mark.parametrize("state", ["completed", "waiting"])
def test_a_prefix_finds_what_is_in_partitions_too(bench, state):
    queue = bench.queue(max_attempts=2)
    paths = [queue.enqueue({}, group="customer-42"), queue.enqueue({}, group="other"), queue.enqueue({}, name="a-1")]
    paths.append(queue.enqueue({}, name="@customers"))

    def handle(message):
        if state == "waiting":
            raise Retry(after=3600)

    Worker(queue, handle).run_until_empty()

    def found(prefix):
        return sorted(one.path for one in queue.list(state, prefix=prefix).messages)

    for prefix in ("", "mess", "messages/"):
        assert found(prefix) == sorted(paths)
    for prefix in ("messages/@", "messages/@customer", "messages/@customer-42/", paths[0]):
        assert found(prefix) == sorted(path for path in paths if path.startswith(prefix)), prefix
    assert found("messages/a-") == paths[2:3]


def test_pages_behind_the_beginning_of_a_partitions_name_show_every_message_once(bench):
    """Of partitions first, then of names that begin so."""
    queue = bench.queue()
    paths = {queue.enqueue({}, group=f"a{number}") for number in range(3)}
    paths |= {queue.enqueue({}, name=f"@a{number}") for number in range(3)}
    Worker(queue, lambda message: None).run_until_empty()
    for limit in (1, 2, 3, 10):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = queue.list("completed", prefix="messages/@a", limit=limit, after=after)
            found += [row.path for row in page.messages]
            after = page.next_after
        assert sorted(found) == sorted(paths), limit


def test_a_lease_that_cannot_be_read_is_shown_as_that(bench):
    queue = bench.queue()
    path = queue.enqueue({})
    bench.put(f"orders/leases/{path}", b"garbage")

    (row,) = queue.list("processing").messages

    assert row.state == "corrupt"
    assert f"orders/leases/{path}" in row.failure.message


def test_an_empty_queue_has_nothing_in_any_state(bench):
    queue = bench.queue()
    for state in ("pending", "delayed", "processing", "waiting", "completed", "dead", "cancelled"):
        assert queue.list(state).to_json() == {"messages": [], "next_after": None}


@pytest.mark.parametrize(("state", "limit"), [("lost", 10), ("pending", 0), ("pending", 1001)])
def test_wrong_questions_are_refused(bench, state, limit):
    with pytest.raises(InvalidRequest, match=r"state|limit"):
        bench.queue().list(state, limit=limit)


def test_what_a_page_costs(bench, full):
    queue = bench.queue()
    bench.store.take()
    queue.list("dead")
    assert bench.store.take() == {"list": 1}
    queue.list("pending")
    assert bench.store.take() == {"list": 2}
    queue.list("waiting")
    assert bench.store.take() == {"list": 1, "get": 2}
