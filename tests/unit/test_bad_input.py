"""Bad input: a clear error or a dead letter with the reason; nothing is lost, and nothing spins."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from s3queue import (
    AccessDenied,
    Context,
    CorruptState,
    DeadLetters,
    InvalidName,
    InvalidPriority,
    InvalidRequest,
    MessageTooLarge,
    NewerFormat,
    NotFound,
    Queue,
    Unavailable,
    Worker,
    connect,
)
from s3queue.keys import MAX_KEY_BYTES
from support.s3_servers import fresh_bucket, s3_client
from support.workbench import Workbench

#: More requests than this for one message that cannot be worked on is a hot loop.
CALM = 25


@pytest.fixture
def bench():
    return Workbench()


@pytest.fixture
def queue(bench):
    return bench.queue()


def nothing_is_lost(bench: Workbench, queue: Queue, path: str) -> None:
    """The message is pending, at work, recorded or dead: somewhere an operator finds it."""  # [P1]
    assert queue.status(path).state in ("pending", "delayed", "processing", "waiting", "completed", "dead", "corrupt")


# Names


ODD_NAMES = [
    "with space",
    "a+b",
    "100%",
    "100%25",
    "50% off + more",
    "ünïcödé/東京/😀",
    "q?x=1&y=2#z",
    "quote'\"",
    "semi;colon,comma",
    "back\\slash",
    "tilde~dash-_.txt",
    "p999/not-a-priority",
    "p12/not-a-priority",
]
#: moto decodes a key once too often, so that "?" begins a query; SeaweedFS takes a backslash for a slash.
UNFIT = {"moto_endpoint": {"100%25", "q?x=1&y=2#z"}, "seaweedfs_endpoint": {"back\\slash"}}


@pytest.mark.parametrize("server", ["memory", "moto_endpoint", "seaweedfs_endpoint"])
def test_odd_names_go_through_their_whole_life(request, server):
    if server == "memory":
        queue = connect("memory://odd-names/orders")
    else:
        client = s3_client(request.getfixturevalue(server))
        queue = connect(f"s3://{fresh_bucket(client)}/orders", client=client)
    names = [name for name in ODD_NAMES if name not in UNFIT.get(server, ())]
    for name in names:
        assert queue.enqueue(name, name=name) == f"messages/{name}"

    claims = {claim.message.body.decode(): claim for claim in queue.claim_next(100)}
    assert sorted(claims) == sorted(names)
    for number, (name, claim) in enumerate(claims.items()):
        if number % 2:
            assert queue.complete(claim, name).result == name
        else:
            queue.fail(claim, f"no {name}", dead=True)

    for number, name in enumerate(claims):
        assert queue.status(f"messages/{name}").state == ("completed" if number % 2 else "dead")
    letters = {letter.path: letter.error for letter in DeadLetters(queue).list()}
    assert letters == {f"messages/{name}": f"no {name}" for name in list(claims)[::2]}
    assert queue.stats().pending == queue.stats().processing == 0


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "a//b", "..", "../a", "a/../b", ".", "./a", "/a", "a\nb", "a\x00b", "a\x7fb", "\ud800"]
)
def test_a_name_that_cannot_be_a_key_everywhere_is_refused_before_anything_is_written(bench, queue, name):
    with pytest.raises(InvalidName):
        queue.enqueue(b"x", name=name)

    assert bench.keys() == []
    assert bench.store.take() == {}


@pytest.mark.parametrize("name", ["../a", "a/../b", "a//b", ".", "a\nb", " ", "%2e%2e/a"])
def test_a_plain_put_may_use_any_key_that_s3_takes(bench, queue, name):
    bench.memory.put(f"orders/messages/{name}", b"x")
    (claim,) = queue.claim_next()

    assert claim.path == f"messages/{name}"
    queue.fail(claim, "no", dead=True)
    assert bench.read(f"orders/dead/messages/{name}") == b"x"
    assert DeadLetters(queue).replay(f"messages/{name}") == f"messages/{name}"


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_the_longest_name_that_leaves_room_for_its_lease_is_taken_and_one_more_is_refused(bench, queue, letter):
    width = len(letter.encode())
    longest = (MAX_KEY_BYTES - len("orders/retries/20261116T101500Z/messages/")) // width

    path = queue.enqueue(b"x", name=letter * longest)
    queue.fail(queue.claim(path), "once")
    bench.clock.advance(5)
    queue.fail(queue.claim(path, read_first=True), "dead", dead=True)
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]

    with pytest.raises(InvalidName, match="too long"):
        queue.enqueue(b"x", name=letter * (longest + 1))


@pytest.mark.parametrize("suffix", ["", ".ndjson"])
@pytest.mark.parametrize("via", ["event", "pull", "sweep"])
def test_a_name_too_long_for_its_lease_becomes_a_dead_letter_that_says_so(bench, queue, via, suffix):  # [P1]
    name = "n" * (MAX_KEY_BYTES - len("orders/messages/") - len(suffix)) + suffix
    bench.memory.put(f"orders/messages/{name}", b"payload", metadata={"who": "me"})
    bench.clock.advance(100)
    bench.store.take()
    ran: list[Any] = []

    if via == "event":
        assert queue.claim(f"messages/{name}") is None
    elif via == "pull":
        assert queue.claim_next(5) == []
    else:
        bench.settle(queue, ran.append)

    assert sum(bench.store.take().values()) < CALM
    assert ran == []
    assert not bench.keys("orders/messages/")
    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == "InvalidName"
    assert "too long" in letter.error
    assert bench.read(f"orders/dead/{letter.path}") == b"payload"
    assert queue.status(letter.path).state == "dead"

    # Under the shorter name that it has now, it can be worked on.
    again = DeadLetters(queue).replay(letter.path)
    claim = queue.claim(again)
    assert (claim.message.body, claim.message.metadata["who"]) == (b"payload", "me")


@pytest.mark.parametrize("due", ["tomorrow", "20261399T000000Z", "20261116", "²0261116T101500Z"])
def test_a_due_time_that_cannot_be_read_becomes_a_dead_letter_that_says_so(bench, queue, due):
    bench.memory.put(f"orders/delayed/{due}/x", b"payload")
    bench.clock.advance(100)
    bench.settle(queue, lambda body: None)

    (letter,) = DeadLetters(queue).list()
    assert "due time" in letter.error
    assert bench.read(f"orders/dead/{letter.path}") == b"payload"


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "_a", "a b", "a/b", "a.b", "ä", "a" * 64, "archive", "analytics", "..", None, 7]
)
def test_a_queue_name_out_of_form_is_refused(bench, name):
    with pytest.raises(InvalidName, match="queue name"):
        bench.queue(name)


@pytest.mark.parametrize("name", ["a", "7", "a" * 63, "orders-eu_2", "archives"])
def test_a_queue_name_in_form_is_taken(bench, name):
    assert bench.queue(name).claim_next() == []


def test_a_folder_placeholder_is_no_message_however_it_is_met(bench, queue):
    for key in ("orders/messages/", "orders/messages/2026/", "orders/delayed/"):
        bench.memory.put(key, b"")
    bench.clock.advance(600)
    dispatched: list[str] = []

    assert queue.claim("messages/") is None
    assert queue.claim("messages/2026/") is None
    assert queue.claim_next(10) == []
    bench.sweeper(queue, dispatched).sweep()

    assert [path for path in dispatched if queue.claim(path, read_first=True)] == []
    assert queue.stats().pending == 0
    assert bench.read("orders/messages/2026/") == b""
    assert not bench.keys("orders/leases/")
    assert not bench.keys("orders/dead/")


def test_an_object_with_a_slash_at_its_end_and_a_body_is_a_message(bench, queue):
    bench.memory.put("orders/messages/folder/", b"not empty")

    (claim,) = queue.claim_next()
    assert claim.message.body == b"not empty"
    queue.complete(claim)
    assert queue.status("messages/folder/").state == "completed"


def test_two_queues_of_which_one_name_begins_the_other_do_not_see_each_other(bench):
    a, ab = bench.queue("a"), bench.queue("a-b")
    of_a, of_ab = a.enqueue(b"for a", delay=1), ab.enqueue(b"for a-b", delay=1)
    a.enqueue(b"for a")
    ab.enqueue(b"for a-b")
    ab.pause()
    bench.clock.advance(100)

    claims = a.claim_next(10)
    assert [claim.message.body for claim in claims] == [b"for a"] * 2
    assert ab.claim_next(10) == []
    assert ab.stats().pending == 2
    assert (a.stats().pending, a.stats().processing) == (0, 2)
    bench.clock.advance(100)
    dispatched: list[str] = []
    bench.sweeper(a, dispatched).sweep()
    assert not bench.keys("a-b/leases/")
    ab.resume()
    assert {of_a, of_ab} <= {claim.path for claim in claims} | {claim.path for claim in ab.claim_next(10)}
    assert a.purge() == 2
    assert len(bench.keys("a-b/messages/")) == 1


# Sizes, priorities, bodies


def test_too_large_is_refused_with_both_numbers(bench):
    with pytest.raises(MessageTooLarge, match="101 bytes; max_message_size is 100"):
        bench.queue(max_message_size=100).enqueue(b"x" * 101)

    assert bench.keys() == []


@pytest.mark.parametrize("priority", [-1, 256, 1e3, "high", None])
def test_an_invalid_priority_is_refused_with_its_range(bench, queue, priority):
    with pytest.raises(InvalidPriority, match="0 to 255"):
        queue.enqueue(b"x", priority=priority)
    with pytest.raises(InvalidPriority):
        queue.enqueue_many([1], priority=priority)

    assert bench.keys() == []


def test_an_empty_body_is_a_message_like_any_other(bench, queue):
    path = queue.enqueue(b"")
    seen = []

    def handler(body: bytes) -> None:
        seen.append(body)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == [b""]


def test_an_empty_body_where_json_is_wanted_is_dead_with_the_reason(bench, queue):
    path = queue.enqueue(b"")

    def handler(body: dict) -> None:
        raise AssertionError("must not run")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert "does not parse" in queue.status(path).record.failure.message
    assert bench.read(f"orders/dead/{path}") == b""


@pytest.mark.parametrize("name", ["single", "batch.ndjson"])
def test_a_body_that_is_not_utf8_is_dead_with_the_reason_and_its_bytes(bench, queue, name):
    path = queue.enqueue(b"\xff\xfe\x00", name=name)

    def handler(body: str) -> None:
        raise AssertionError("must not run")

    assert bench.processor(queue, handler).run(path) == "dead"
    (letter,) = DeadLetters(queue).list()
    assert "utf-8" in letter.error
    assert bench.read(f"orders/dead/{letter.path}") == b"\xff\xfe\x00"


@pytest.mark.parametrize("body", [object(), {1, 2}, {"a": object()}, float])
def test_a_body_that_is_neither_bytes_text_nor_json_is_refused(bench, queue, body):
    with pytest.raises(InvalidRequest):
        queue.enqueue(body)

    assert bench.keys() == []


# Garbage in place of our own documents


GARBAGE = [
    b"",
    b"garbage",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"7",
    b"{}",
    b'{"v":1}',
    b'{"v":"1"}',
    b'{"v":1,"state":"dancing","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30}',
    b'{"v":1,"state":"processing","attempt":"many","owner":"x","nonce":"n","timeout_seconds":30}',
    b'{"v":1,"state":"processing","attempt":1,"owner":"x","nonce":"n","timeout_seconds":1e999}',
    b'{"v":1,"state":"waiting","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30,"retry_at":"soon"}',
    b'{"v":1,"state":"waiting","attempt":1,"owner":"x","nonce":"n","timeout_seconds":30,"lines":7}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_lease_overwritten_with_garbage_buries_its_message_with_the_reason(bench, queue, garbage):  # [P1] [P5]
    path = queue.enqueue(b"payload")
    claim = queue.claim(path)
    bench.memory.put(f"orders/leases/{path}", garbage)
    status = queue.status(path)
    assert status.state == "corrupt"
    assert f"orders/leases/{path}" in status.problem
    assert queue.claim(path) is None
    assert queue.claim(path, read_first=True) is None
    bench.clock.advance(60)

    report = bench.sweeper(queue).sweep()

    assert list(report.corrupt) == [f"orders/leases/{path}"]
    assert bench.read(f"orders/dead/{path}") == b"payload"
    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == "CorruptState"
    assert not bench.keys("orders/leases/")
    # The worker that held it finishes late: its death stands, and nothing breaks.
    assert queue.complete(claim).outcome == "dead"


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_record_overwritten_with_garbage_is_no_outcome_and_is_replaced(bench, queue, garbage):  # [P1]
    path = queue.enqueue(b"payload")
    bench.memory.put(f"orders/records/{path}", garbage)
    assert queue.status(path).state == "corrupt"

    bench.processor(queue, lambda body: "done", should_stop=lambda: True)
    claim = queue.claim(path)
    assert queue.complete(claim, "done").result == "done"
    assert queue.status(path).record.result == "done"


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\xff", b"[]", b"7", b'{"no_such":1}', b'{"max_attempts":0}'])
def test_a_queue_json_that_makes_no_sense_changes_nothing_and_says_so_to_operators(bench, queue, garbage, caplog):
    queue.configure(max_attempts=7)
    bench.clock.advance(60)
    bench.memory.put("orders/queue.json", garbage)

    assert queue.refresh()
    assert queue.settings.max_attempts == 7
    assert "orders/queue.json" in caplog.text
    with pytest.raises(CorruptState, match=r"orders/queue\.json"):
        queue.overrides()
    with pytest.raises(CorruptState, match="correct or delete it"):
        queue.configure(max_attempts=5)
    # Work goes on meanwhile.
    path = queue.enqueue(b"x")
    assert [claim.path for claim in queue.claim_next()] == [path]
    bench.sweeper(queue).sweep()


@pytest.mark.parametrize("garbage", [b"garbage", b"{}", b'{"v":1,"worker":7}', b'{"v":1,"holds":3}'])
def test_a_heartbeat_or_count_overwritten_with_garbage_counts_as_none(bench, queue, garbage):
    path = queue.enqueue(b"x")
    queue.claim(path)
    bench.memory.put(f"orders/workers/{queue.worker_id}", garbage)
    bench.memory.put("orders/stats.json", garbage)
    assert queue.published_stats() is None
    bench.clock.advance(60)

    assert bench.sweeper(bench.queue(worker_id="sweeper")).sweep().endings == {"retried": 1}


def test_a_lease_of_a_future_version_is_never_touched(bench, queue):
    path = queue.enqueue(b"x")
    queue.claim(path)
    body = json.dumps({"v": 2, "state": "hibernating", "owner": "future"}).encode()
    bench.memory.put(f"orders/leases/{path}", body)
    sweeper = bench.sweeper(queue)
    sweeper.sweep()
    for _ in range(5):
        bench.clock.advance(600)
        bench.store.take()
        report = sweeper.sweep()
        assert "upgrade this side" in report.corrupt[f"orders/leases/{path}"]
        assert sum(bench.store.take().values()) < CALM

    assert queue.claim(path, read_first=True) is None
    assert queue.claim_next() == []
    assert bench.read(f"orders/leases/{path}") == body
    assert bench.read(f"orders/{path}") == b"x"
    assert not bench.keys("orders/dead/")


def test_a_record_of_a_future_version_counts_as_the_outcome_that_it_names(bench, queue):  # [P3] [P4]
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    record = queue.complete(queue.claim(queue.enqueue(b"y")))
    generation = claim.message.generation
    future = {
        "v": 2,
        "outcome": "completed",
        "message_etag": generation.etag,
        "enqueued_at": generation.put_at.isoformat(),
        "poem": ["something", "new"],
    }
    bench.memory.put(f"orders/records/{path}", json.dumps(future).encode())
    assert record.outcome == "completed"

    assert queue.complete(claim, "mine").result is None
    assert json.loads(bench.read(f"orders/records/{path}")) == future
    assert not bench.keys("orders/messages/")


@pytest.mark.parametrize("when", ["first attempt", "retry", "expired"])
def test_a_record_of_a_future_version_that_cannot_be_placed_stops_its_message_only(bench, queue, when):  # [P1]
    path = queue.enqueue(b"1")
    others = [queue.enqueue(b"2") for _ in range(3)]
    if when == "retry":
        queue.fail(queue.claim(path), "once")
    elif when == "expired":
        queue.claim(path)
    bench.memory.put(f"orders/records/{path}", b'{"v":99,"fate":"unknown"}')
    bench.clock.advance(60)
    dispatched: list[str] = []
    ran: list[int] = []
    processor, sweeper = bench.processor(queue, ran.append), bench.sweeper(queue, dispatched)
    bench.store.take()

    for _ in range(10):
        sweeper.sweep()
        while dispatched:
            with contextlib.suppress(NewerFormat):
                processor.run(dispatched.pop(0), read_first=True)
        bench.clock.advance(60)

    assert [queue.status(other).state for other in others] == ["completed"] * 3
    assert ran.count(1) <= 1
    assert bench.read(f"orders/{path}") == b"1"
    assert bench.read(f"orders/records/{path}") == b'{"v":99,"fate":"unknown"}'
    nothing_is_lost(bench, queue, path)
    # Ten sweeps of LISTs and a look at one lease each; no message is claimed again and again.
    assert bench.store.take()["put"] < 40


# Access


class _Refusing(BaseHTTPRequestHandler):
    """An S3 that refuses some requests with 403 and has no objects."""

    protocol_version = "HTTP/1.1"
    refused: ClassVar[set[str]]
    code: ClassVar[str]
    requests: ClassVar[list[str]]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(f"{self.command} {self.path}")
        verb = "LIST" if "list-type" in self.path else self.command
        if verb in self.refused:
            status, body = 403, f"<Error><Code>{self.code}</Code><Message>Access Denied</Message></Error>".encode()
        elif verb == "LIST":
            status, body = 200, b"<ListBucketResult></ListBucketResult>"
        elif verb in ("GET", "HEAD"):
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        else:
            status, body = 200, b""
        self.send_response(status)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def refusing(*verbs: str, code: str = "AccessDenied") -> Iterator[tuple[Queue, list[str]]]:
    """A queue on a server that refuses these verbs, and the requests that it got."""
    handler = type("Refusing", (_Refusing,), {"refused": set(verbs), "code": code, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        client = s3_client(f"http://127.0.0.1:{server.server_port}")
        yield connect("s3://jobs/orders", client=client), handler.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("verb", "call", "action", "permission", "resource"),
    [
        ("PUT", lambda queue: queue.enqueue(b"x", name="n"), "PUT", "s3:PutObject", "orders/messages/n"),
        ("PUT", lambda queue: queue.claim("messages/n"), "PUT", "s3:PutObject", "orders/leases/messages/n"),
        ("GET", lambda queue: queue.claim("messages/n"), "GET", "s3:GetObject", "orders/messages/n"),
        ("HEAD", lambda queue: queue.status("messages/n"), "HEAD", "s3:GetObject", "orders/messages/n"),
        ("DELETE", lambda queue: queue.claim("messages/n"), "DELETE", "s3:DeleteObject", "orders/leases/messages/n"),
        ("LIST", lambda queue: queue.stats(), "LIST", "s3:ListBucket", "jobs for the prefix 'orders/'"),
    ],
)
def test_access_denied_names_the_action_the_key_and_the_missing_permission(verb, call, action, permission, resource):
    with refusing(verb) as (queue, requests):
        with pytest.raises(AccessDenied) as denied:
            call(queue)
        text = str(denied.value)

    assert text.startswith(f"{action} s3://jobs/")
    assert permission in text
    assert resource in text
    # Refused is refused: it is not tried again.
    assert len([line for line in requests if line.startswith("GET" if verb == "LIST" else verb)]) <= 2


def test_a_403_for_reading_mentions_the_permission_that_tells_missing_from_forbidden():
    with refusing("GET") as (queue, _), pytest.raises(AccessDenied, match="s3:ListBucket"):
        queue.claim("messages/n")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_bad_credentials_are_not_called_a_missing_permission(code):
    with refusing("PUT", code=code) as (queue, _), pytest.raises(AccessDenied) as denied:
        queue.enqueue(b"x")

    assert "log in again" in str(denied.value)
    assert "allow s3:" not in str(denied.value)


def test_a_worker_without_permission_says_so_and_does_not_spin(caplog):
    with refusing("LIST") as (queue, requests):
        worker = Worker(queue, lambda body: None, concurrency=2, poll_interval=0.5)
        began = time.monotonic()
        worker.start()
        threading.Event().wait(1.2)
        assert worker.stop(timeout=60)
        passed = time.monotonic() - began

    assert "s3:ListBucket" in caplog.text
    # Two threads that try every half second, and what a worker asks at its start.
    assert len(requests) <= 12 + 4 * passed


def test_a_missing_bucket_is_called_one(moto_endpoint):
    queue = connect("s3://no-such-bucket-here/orders", client=s3_client(moto_endpoint))

    for call in (
        lambda: queue.enqueue(b"x"),
        lambda: queue.claim("messages/x"),
        lambda: queue.claim_next(),
        lambda: queue.stats(),
        lambda: Workbench().sweeper(queue).sweep(),
    ):
        with pytest.raises(NotFound, match="no-such-bucket-here"):
            call()


def test_a_server_that_is_not_there_is_unavailable():
    client = s3_client("http://127.0.0.1:9", retries={"total_max_attempts": 1}, connect_timeout=1)

    with pytest.raises(Unavailable):
        connect("s3://jobs/orders", client=client).enqueue(b"x")


# Handlers


def test_a_handler_that_calls_exit_kills_neither_worker_nor_message(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path, other = queue.enqueue(b"1"), queue.enqueue(b"2")

    def handler(body: int) -> None:
        if body == 1:
            raise SystemExit("enough")

    worker = Worker(queue, handler, concurrency=1, sweep=False)
    worker.run_until_empty()

    assert queue.status(path).record.failure.type == "SystemExit"
    assert queue.status(other).state == "completed"
    assert worker.stats()["dead"] == 1


def test_a_handler_that_outlives_its_lease_is_finished_by_the_sweeper_and_not_run_again(bench, queue):  # [P4] [P6]
    path = queue.enqueue(b"1")
    runs = []

    def slow(body: int) -> str:
        runs.append(body)
        bench.clock.advance(100)
        return "late but done"

    assert bench.processor(queue, slow).run(path) == "completed"
    assert bench.keys("orders/messages/")  # a zombie clears nothing

    bench.settle(queue, slow)
    assert runs == [1]
    assert queue.status(path).record.result == "late but done"
    assert not bench.keys("orders/leases/")


def test_a_handler_that_always_outlives_its_lease_and_then_fails_ends_as_a_dead_letter(bench):  # [P1] [P5]
    queue = bench.queue(max_attempts=3)
    path = queue.enqueue(b"1")
    runs = []

    def slow(body: int, context: Context) -> None:
        runs.append(context.attempt)
        bench.clock.advance(100)
        raise ValueError("too late")

    bench.settle(queue, slow)

    assert runs == [1, 2, 3]
    assert queue.status(path).state == "dead"
    assert bench.read(f"orders/dead/{path}") == b"1"


@pytest.mark.parametrize(
    "result",
    [object(), {1, 2}, b"bytes", float("nan"), {"a": float("inf")}, {(1, 2): 3}],
    ids=lambda value: repr(value)[:9],
)
def test_a_result_that_json_cannot_hold_is_noted_and_the_work_counts_as_done(bench, queue, result):
    path = queue.enqueue(b"1")
    runs = []

    def handler(body: int) -> Any:
        runs.append(body)
        return result

    assert bench.processor(queue, handler).run(path) == "completed"

    record = queue.status(path).record
    assert record.outcome == "completed"
    assert record.result is None
    assert "JSON cannot hold" in record.result_error
    assert runs == [1]


def test_a_result_that_contains_itself_or_is_huge_is_noted_too(bench, queue):
    loop: list[Any] = []
    loop.append(loop)
    for result in (loop, "x" * 300_000):
        path = queue.enqueue(b"1")
        assert bench.processor(queue, lambda body, result=result: result).run(path) == "completed"
        assert queue.status(path).record.result_error


@pytest.mark.parametrize("result", [object(), float("nan"), {1}])
def test_a_line_whose_result_json_cannot_hold_does_not_spoil_its_batch(bench, queue, result):
    (path,) = queue.enqueue_many([1, 2])

    def handler(body: Any) -> Any:
        return result if body == 1 else "fine"

    assert bench.processor(queue, handler).run(path) == "completed"
    record = queue.status(path).record
    assert (record.lines["completed"], record.lines["results"]) == (2, [[2, "fine"]])


@pytest.mark.parametrize("ending", ["returns", "raises"])
@pytest.mark.parametrize("history", [True, False])
def test_a_handler_that_deletes_its_own_message_leaves_a_clear_story(bench, ending, history):  # [P1]
    queue = bench.queue(max_attempts=2, history=history)
    path = queue.enqueue(b"1")
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        bench.memory.delete(f"orders/{path}")
        if ending == "raises":
            raise ValueError("and now?")

    bench.store.take()
    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(10)
    processor.run(path, read_first=True)
    bench.clock.advance(100)
    bench.sweeper(queue).sweep()

    assert runs == [1]
    assert sum(bench.store.take().values()) < CALM
    assert not bench.keys("orders/leases/")
    if history:
        record = queue.status(path).record
        assert (record.outcome, record.failure and record.failure.type) == (
            ("completed", None) if ending == "returns" else ("dead", "MessageVanished")
        )


def test_a_handler_that_deletes_its_message_and_dies_of_it_says_why(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"1")

    def handler(body: int) -> None:
        bench.memory.delete(f"orders/{path}")
        raise ValueError("and now?")

    assert bench.processor(queue, handler).run(path) == "dead"
    assert queue.status(path).record.failure.message == "and now?"
    assert not bench.keys("orders/leases/")


def test_a_handler_that_enqueues_its_own_name_again_runs_once_more_and_not_for_ever(bench, queue):
    path = queue.enqueue(b"1", name="self")
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        if body == 1:
            queue.enqueue(b"2", name="self")

    bench.processor(queue, handler).run(path)

    assert runs == [1, 2]
    assert not bench.keys("orders/messages/")


@pytest.mark.parametrize("error", [ValueError("x" * 1_000_000), ValueError("ü\n\x00 \ud800"), KeyError()])
def test_an_error_of_any_size_and_script_can_be_kept_and_read(bench, queue, error):
    path = queue.enqueue(b"1", metadata={"note": "y" * 1500})

    def handler(body: int) -> None:
        raise error

    for _ in range(3):
        bench.processor(queue, handler).run(path, read_first=True)
        bench.clock.advance(60)

    (letter,) = DeadLetters(queue).list()
    assert letter.error_type == type(error).__name__
    stored = bench.memory.head(f"orders/dead/{path}").metadata
    assert sum(len(name) + len(value) for name, value in stored.items()) <= 2048
    assert stored["note"] == "y" * 1500
