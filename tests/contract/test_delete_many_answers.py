"""What both clients make of DeleteObjects' answers, and of servers that do not compare its ETags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from s3queue.errors import AccessDenied, Unavailable
from s3queue.store import ObjectStore, delete_all_seen
from s3queue.stores.direct import DirectStore
from s3queue.stores.many import BulkDelete
from s3queue.stores.s3 import S3Store, client
from support.faulty_server import LOST, NEVER_ARRIVED, Answer, FaultyServer, faulty_server
from support.manual_clock import ManualClock

TRIAL = ["PUT", "POST", "HEAD", "POST", "HEAD"]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture(params=["boto3", "direct"])
def untried(request: pytest.FixtureRequest, server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    # The SDK's own pause between two tries is real time.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    if request.param == "direct":
        return DirectStore("jobs", endpoint_url=server.endpoint, keys=("a", "b"), clock=ManualClock())
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return S3Store("jobs", client=client(server.endpoint, "eu-west-1", **keys), clock=ManualClock())


@pytest.fixture
def store(untried: ObjectStore, server: FaultyServer) -> ObjectStore:
    """After its trial."""
    put_some(untried, "x", "y")
    untried.delete_many(seen("x", "y"))
    assert not server.objects
    server.requests.clear()
    return untried


def put_some(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put(key, b"same bytes")


def seen(*keys: str) -> dict[str, str]:
    return dict.fromkeys(keys, hashlib.md5(b"same bytes", usedforsecurity=False).hexdigest())


def verbs(server: FaultyServer) -> list[str]:
    return [verb for verb, _ in server.requests]


def test_a_server_is_tried_once_and_nothing_is_left_of_it(server, untried):
    put_some(untried, "q/messages/a", "q/messages/b", "q/messages/c", "q/messages/d")
    server.requests.clear()

    untried.delete_many(seen("q/messages/a", "q/messages/b"))
    untried.delete_many(seen("q/messages/c", "q/messages/d"))

    assert verbs(server) == [*TRIAL, "POST", "POST"]
    assert server.requests[0][1].startswith("/jobs/q/idempotency/probe-")
    assert server.objects == {}


def test_a_server_that_ignores_the_etags_gets_a_delete_for_each(server, untried):
    server.compares_etags = False
    put_some(untried, "q/messages/a", "q/messages/b")
    untried.put("q/messages/b", b"written again")
    server.requests.clear()

    assert untried.delete_many(seen("q/messages/a", "q/messages/b")) == {"q/messages/b"}
    # By now both are refused, and a DELETE does not say why.
    assert untried.delete_many(seen("q/messages/a", "q/messages/b")) == {"q/messages/a", "q/messages/b"}

    assert list(server.objects) == ["/jobs/q/messages/b"]
    assert verbs(server)[:3] == TRIAL[:3]
    # What is tried is deleted, if it is still there; and nothing is tried again.
    assert set(verbs(server)[3:]) <= {"DELETE", "HEAD"}


REFUSALS = [
    (at, Answer(*told)) for at in range(len(TRIAL)) for told in ((403, "AccessDenied"), (501, "NotImplemented"))
]


@pytest.mark.parametrize(("at", "answer"), [*REFUSALS, (1, NEVER_ARRIVED), (3, NEVER_ARRIVED), (1, LOST), (3, LOST)])
def test_a_trial_that_fails_is_as_good_as_a_refusal(server, untried, at, answer):
    put_some(untried, "q/messages/a", "q/messages/b")
    untried.put("q/messages/b", b"written again")
    server.requests.clear()
    server.expect(*[Answer(200, applied=True)] * at, answer)

    assert untried.delete_many(seen("q/messages/a", "q/messages/b")) == {"q/messages/b"}

    assert list(server.objects) == ["/jobs/q/messages/b"]
    assert verbs(server)[-2:] == ["DELETE", "DELETE"]


def test_aws_is_not_tried():
    for address in ("https://s3.eu-west-1.amazonaws.com", "https://jobs.s3.cn-north-1.amazonaws.com.cn"):
        assert BulkDelete(address)._compares_etags
    for address in ("http://127.0.0.1:8333", "https://amazonaws.com.example.org", "https://notamazonaws.com"):
        assert BulkDelete(address)._compares_etags is None


def test_only_one_key_needs_neither_a_trial_nor_a_bulk_request(server, untried):
    put_some(untried, "q/messages/a")
    server.requests.clear()

    assert untried.delete_many(seen("q/messages/a")) == frozenset()

    assert verbs(server) == ["DELETE"]


@pytest.mark.parametrize(
    "code", ["InternalError", "SlowDown", "ServiceUnavailable", "ConditionalRequestConflict", "New"]
)
def test_an_object_that_met_an_error_is_unknown_and_the_others_are_not(server, store, code):
    put_some(store, "q/messages/a", "q/messages/b", "q/messages/c")
    server.refuses = {"q/messages/b": code}

    assert store.delete_many(seen("q/messages/a", "q/messages/b", "q/messages/c")) == {"q/messages/b"}
    assert list(server.objects) == ["/jobs/q/messages/b"]


def test_an_object_that_may_not_be_deleted_is_named(server, store):
    put_some(store, "q/messages/a", "q/messages/b")
    server.refuses = {"q/messages/b": "AccessDenied"}

    with pytest.raises(AccessDenied, match=r"allow s3:DeleteObject on arn:aws:s3:::jobs/q/messages/b"):
        store.delete_many(seen("q/messages/a", "q/messages/b"))


@pytest.mark.parametrize("answer", [LOST, Answer(500, "InternalError", applied=True), NEVER_ARRIVED])
def test_without_an_answer_it_is_never_repeated_below_the_protocol(server, store, answer):
    """[P1] It lands, its answer is lost, the same bytes are PUT anew: a repetition would delete the new ones."""
    put_some(store, "q/messages/a", "q/messages/b")
    server.requests.clear()
    server.expect(answer)

    with pytest.raises(Unavailable):
        store.delete_many(seen("q/messages/a", "q/messages/b"))

    assert verbs(server) == ["POST"]


def test_what_s3_turned_away_is_sent_again(server, store):
    put_some(store, "q/messages/a", "q/messages/b")
    server.requests.clear()
    server.expect(Answer(503, "SlowDown"))

    assert store.delete_many(seen("q/messages/a", "q/messages/b")) == frozenset()
    assert verbs(server) == ["POST", "POST"]


@pytest.mark.parametrize("answer", [LOST, NEVER_ARRIVED])
def test_a_lost_answer_is_settled_by_looking(server, store, answer):
    put_some(store, "q/messages/a", "q/messages/b")
    found = [store.head("q/messages/a"), store.head("q/messages/b")]
    server.requests.clear()
    server.expect(answer)

    delete_all_seen(store, found)

    assert verbs(server) == ["POST", *(["HEAD"] if answer is LOST else ["HEAD", "DELETE"]) * 2]
    assert server.objects == {}
