"""What S3's refusals and silences become, tried on a real server that misbehaves on demand."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from s3queue import Queue
from s3queue.errors import (
    AccessDenied,
    Conflict,
    Contended,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    Unavailable,
)
from s3queue.store import ObjectInfo, ObjectStore, delete_unique, put_surely
from s3queue.stores import s3
from s3queue.stores.direct import DirectStore
from s3queue.stores.s3 import TRIES, S3Store, client
from support.faulty_server import LOST, NEVER_ARRIVED, OK, Answer, FaultyServer, faulty_server
from support.manual_clock import ManualClock
from support.s3_servers import fresh_bucket, s3_client

SDK_TRIES = 2


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def boto3_store(server: FaultyServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    # The SDK's own pause between two tries is real time.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    connected = s3_client(
        server.endpoint,
        retries={"mode": "standard", "total_max_attempts": SDK_TRIES},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        read_timeout=5,
    )
    return S3Store("jobs", client=connected, clock=clock)


@pytest.fixture
def direct_store(server: FaultyServer, clock: ManualClock) -> DirectStore:
    return DirectStore("jobs", endpoint_url=server.endpoint, tries=SDK_TRIES, clock=clock)


@pytest.fixture(params=["boto3", "direct"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return request.getfixturevalue(f"{request.param}_store")


def requests_of(store: ObjectStore):
    """Every operation of the port, as it would be called, with its permission."""
    return {
        "put": lambda: store.put("q/a", b"x"),
        "get": lambda: store.open("q/a"),
        "head": lambda: store.head("q/a"),
        "delete": lambda: store.delete("q/a"),
        "copy": lambda: store.copy("q/b", "q/a"),
        "list": lambda: store.list("q/"),
    }


def test_the_time_is_the_servers_and_not_this_machines(server, store):
    written = store.put("a", b"x")

    assert written.at == datetime(2026, 11, 16, 10, 15, tzinfo=UTC)
    assert store.open("a").at == store.head("a").modified_at == store.delete("a") == written.at


def test_409_is_tried_again_until_someone_wins(server, store, clock):
    server.expect(Answer(409, "ConditionalRequestConflict"), Answer(409, "ConditionalRequestConflict"))

    store.put("lease", b"mine", if_absent=True)

    assert server.objects == {"/jobs/lease": b"mine"}
    assert len(clock.sleeps) == 2
    assert all(0 < pause < 1 for pause in clock.sleeps)


def test_409_sends_a_stream_again_from_its_start(server, store):
    server.expect(Answer(409, "ConditionalRequestConflict"))
    body = io.BytesIO(b"headerpayload")
    body.seek(6)

    store.put("message", body)

    assert server.objects == {"/jobs/message": b"payload"}


def test_409_for_ever_is_contended_which_is_no_loss(server, store):
    server.expect(always=Answer(409, "ConditionalRequestConflict"))

    with pytest.raises(Contended):
        store.put("lease", b"mine", if_absent=True)

    assert len(server.requests) == TRIES


def test_a_409_to_a_write_that_landed_is_not_taken_for_a_lost_race(server, store):
    """S3 does not answer so; something between us and S3 that repeats a write may."""
    server.expect(Answer(409, "ConditionalRequestConflict", applied=True))

    written = put_surely(store, "lease", b"mine", if_absent=True)

    assert written.etag == hashlib.md5(b"mine", usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("message", b"mine", if_absent=True, once=True),
        lambda store: store.delete("source"),
        lambda store: store.copy("source", "message"),
    ],
    ids=["put", "delete", "copy"],
)
def test_what_may_be_sent_only_once_is_not_sent_again_after_a_409(server, store, write):
    """The write may have landed, been worked on, and be gone: the next one would be a second message."""
    store.put("source", b"x")
    del server.requests[:]
    server.expect(Answer(409, "ConditionalRequestConflict", applied=True))

    with pytest.raises(Contended):
        write(store)

    assert len(server.requests) == 1


@pytest.mark.parametrize("operation", ["put", "get", "head", "delete", "copy", "list"])
@pytest.mark.parametrize("answer", [Answer(500, "InternalError"), Answer(503, "SlowDown"), NEVER_ARRIVED])
def test_what_the_server_does_not_say_is_unknown(server, store, operation, answer):
    server.expect(always=answer)

    with pytest.raises(Unavailable, match=r"s3://jobs/q/"):
        requests_of(store)[operation]()

    # What may have been carried out is not sent again blindly; what S3 turned away unread is.
    is_once = operation in ("delete", "copy") and answer.code != "SlowDown"
    assert len(server.requests) == (1 if is_once else SDK_TRIES)


ONCE = {
    "delete": lambda store, etag: store.delete("message", if_match=etag),
    "put": lambda store, etag: store.put("message", b"same bytes", if_absent=True, once=True),
    "copy": lambda store, etag: store.copy("message", "dead", if_match=etag),
}


@pytest.mark.parametrize("operation", ONCE)
@pytest.mark.parametrize("answer", [LOST, Answer(500, "InternalError", applied=True)], ids=["lost", "500"])
def test_a_request_that_may_have_been_carried_out_is_never_repeated_below_the_protocol(
    server, store, operation, answer
):
    """[P1] The DELETE lands, its answer is lost, the same bytes are PUT anew: a repetition would delete the new one."""
    etag = hashlib.md5(b"same bytes", usedforsecurity=False).hexdigest()
    if operation != "put":
        store.put("message", b"same bytes")
    server.requests.clear()
    server.expect(answer)

    with pytest.raises(Unavailable):
        ONCE[operation](store, etag)

    assert len(server.requests) == 1


def test_a_request_that_s3_turned_away_is_sent_again(server, store):
    store.put("message", b"once")
    server.expect(Answer(503, "SlowDown"))

    store.delete("message", if_match=hashlib.md5(b"once", usedforsecurity=False).hexdigest())

    assert server.objects == {}


@pytest.mark.parametrize("kind", ["boto3", "direct"])
def test_nobody_listening_is_unavailable(kind):
    with faulty_server() as server:
        pass

    if kind == "boto3":
        store = S3Store("jobs", client=s3_client(server.endpoint, retries={"total_max_attempts": 1}))
    else:
        store = DirectStore("jobs", endpoint_url=server.endpoint, tries=1)

    with pytest.raises(Unavailable, match="HEAD s3://jobs/a"):
        store.head("a")


@pytest.mark.parametrize("first", [LOST, Answer(500, "InternalError", applied=True)])
def test_a_412_after_the_sdk_tried_again_may_be_our_own_success(server, store, first):
    server.expect(first)

    with pytest.raises(Conflict) as lost:
        store.put("lease", b"mine", if_absent=True)

    assert lost.value.retried


def test_a_412_at_once_is_someone_elses(server, store):
    server.objects["/jobs/lease"] = b"theirs"

    with pytest.raises(Conflict) as lost:
        store.put("lease", b"mine", if_absent=True)

    assert not lost.value.retried


def test_a_409_between_does_not_hide_that_the_sdk_tried_again(server, store):
    server.expect(LOST, Answer(409, "ConditionalRequestConflict"), OK)

    with pytest.raises(Conflict) as lost:
        store.put("lease", b"mine", if_absent=True)

    assert lost.value.retried


@pytest.mark.parametrize(
    "script",
    [
        [LOST],
        [LOST, LOST],
        [Answer(500, "InternalError", applied=True)],
        [LOST, Answer(409, "ConditionalRequestConflict")],
        [NEVER_ARRIVED, NEVER_ARRIVED, LOST],
    ],
)
def test_put_surely_finds_out_that_it_won(server, store, script):
    server.expect(*script)

    put_surely(store, "lease", b"mine", if_absent=True)

    assert server.objects == {"/jobs/lease": b"mine"}


def test_delete_unique_finds_out_that_it_was_the_one(server, store):
    etag = store.put("lease", b"mine").etag
    server.expect(LOST)

    assert delete_unique(store, "lease", if_match=etag) is True


@pytest.mark.parametrize(
    ("operation", "permission", "resource"),
    [
        ("put", "s3:PutObject", "arn:aws:s3:::jobs/q/a"),
        ("get", "s3:GetObject", "arn:aws:s3:::jobs/q/a"),
        ("head", "s3:GetObject", "arn:aws:s3:::jobs/q/a"),
        ("delete", "s3:DeleteObject", "arn:aws:s3:::jobs/q/a"),
        ("copy", "s3:PutObject", "arn:aws:s3:::jobs/q/a"),
        ("list", "s3:ListBucket", "arn:aws:s3:::jobs"),
    ],
)
def test_access_denied_names_the_action_the_key_and_the_permission(server, store, operation, permission, resource):
    server.expect(always=Answer(403, "AccessDenied"))

    with pytest.raises(AccessDenied) as denied:
        requests_of(store)[operation]()

    for part in (f"{operation.upper()} s3://jobs/q/", permission, resource):
        assert part in str(denied.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_wrong_credentials_are_not_called_a_missing_permission(server, store, code):
    server.expect(always=Answer(403, code))

    with pytest.raises(AccessDenied, match="AWS_PROFILE"):
        store.put("q/a", b"x")


def test_an_expired_token_is_a_matter_of_access(server, store):
    server.expect(always=Answer(400, "ExpiredToken"))

    with pytest.raises(AccessDenied, match="ExpiredToken"):
        store.put("q/a", b"x")


def test_a_head_that_is_refused_without_a_reason_is_a_matter_of_access(server, store):
    """S3 answers 400 for an object under its producer's key (SSE-C), and for an expired token."""
    server.expect(always=Answer(400, "InvalidRequest"))

    with pytest.raises(AccessDenied, match=r"HEAD s3://jobs/q/a: .*SSE-C"):
        store.head("q/a")


def test_no_credentials_at_all_are_a_matter_of_access(server, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)

    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        S3Store("jobs", client=client(server.endpoint)).head("a")
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        DirectStore("jobs", endpoint_url=server.endpoint).head("a")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(400, "KeyTooLongError"), InvalidName),
        (Answer(400, "EntityTooLarge"), MessageTooLarge),
        (Answer(400, "InvalidArgument"), InvalidRequest),
        (Answer(404, "NoSuchBucket"), NotFound),
        (Answer(400, "RequestTimeout"), Unavailable),
        (Answer(429, "TooManyRequests"), Unavailable),
        (Answer(408), Unavailable),
        (Answer(501, "NotImplemented"), InvalidRequest),
    ],
)
def test_every_refusal_has_its_own_reaction(server, store, answer, error):
    server.expect(always=answer)

    with pytest.raises(error) as raised:
        store.put("q/a", b"x")

    assert type(raised.value) is error


@pytest.mark.parametrize("refusal", [Answer(403, "AccessDenied"), Answer(400, "ExpiredToken")])
def test_a_refusal_does_not_say_what_became_of_the_try_before(server, store, refusal):
    server.expect(LOST, refusal)

    with pytest.raises(Unavailable, match=r"earlier try"):
        store.put("q/a", b"x", if_absent=True)

    assert server.objects == {"/jobs/q/a": b"x"}


@pytest.mark.parametrize("operation", ["put", "get", "head", "delete", "copy", "list"])
def test_a_bucket_in_another_region_is_not_here(server, direct_store, operation):
    server.expect(always=Answer(301, "PermanentRedirect"))

    with pytest.raises(NotFound, match="region"):
        requests_of(direct_store)[operation]()


def test_a_new_bucket_that_is_not_known_everywhere_yet_is_tried_again(server, direct_store):
    server.expect(Answer(307, "TemporaryRedirect"))

    direct_store.put("q/a", b"x")

    assert server.objects == {"/jobs/q/a": b"x"}


@pytest.mark.parametrize("operation", ["put", "get", "delete", "copy", "list"])
def test_a_missing_bucket_is_said_to_be_missing(server, store, operation):
    server.expect(always=Answer(404, "NoSuchBucket"))

    with pytest.raises(NotFound, match="no bucket 'jobs'"):
        requests_of(store)[operation]()


@pytest.mark.parametrize("operation", ["put", "get", "delete", "copy", "list"])
def test_a_missing_bucket_is_said_to_be_missing_by_moto_too(moto_endpoint, operation):
    # Not by SeaweedFS, which creates a bucket at the first PUT.
    for missing in (
        S3Store("never-created", client=s3_client(moto_endpoint)),
        DirectStore("never-created", endpoint_url=moto_endpoint),
    ):
        with pytest.raises(NotFound):
            requests_of(missing)[operation]()


#: A 404 of something else than a bucket: another web server, one whose page is XML, a gateway of S3's kind, S3 itself.
FOREIGN = {
    "page": Answer(404, page=b"Cannot PUT /jobs"),
    "xml": Answer(404, page=b"<html><body><h1>Not Found</h1></body></html>"),
    "gateway": Answer(404, "NoSuchRoute"),
    "access point": Answer(404, "NoSuchAccessPoint"),
}
GONE = Answer(404, "NoSuchKey")
ETAG = "0" * 32
CONDITIONAL = {
    "put": lambda store: store.put("q/a", b"x", if_match=ETAG),
    "delete": lambda store: store.delete("q/a", if_match=ETAG),
    "get": lambda store: store.open("q/a", if_match=ETAG),
    "copy": lambda store: store.copy("q/b", "q/a", if_match=ETAG),
}


@pytest.mark.parametrize("operation", ["put", "get", "delete", "copy", "list"])
@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_a_404_that_no_bucket_answers_names_bucket_and_endpoint(server, store, operation, answer):
    """[P1] It means neither that someone was first, nor that nothing is there."""
    server.expect(always=answer)

    asked = [requests_of(store)[operation]]
    if operation in CONDITIONAL:
        asked.append(lambda: CONDITIONAL[operation](store))
    for ask in asked:
        with pytest.raises(NotFound) as raised:
            ask()

        for part in (f"{operation.upper()} s3://jobs/q/", "'jobs'", server.endpoint):
            assert part in str(raised.value)


@pytest.mark.parametrize("answer", [*FOREIGN.values(), GONE], ids=[*FOREIGN, "no such key"])
@pytest.mark.parametrize("options", [{}, {"name": "n17"}, {"dedup_id": "n17"}], ids=["plain", "name", "dedup_id"])
def test_a_message_whose_put_is_answered_404_is_not_called_stored(server, store, answer, options):
    """[P1] Without If-Match, nobody can have been first."""
    server.expect(always=answer)
    queue = Queue(store=store, name="q")

    with pytest.raises(NotFound):
        queue.enqueue({"order": 17}, **options)
    with pytest.raises(NotFound):
        queue.enqueue_many([{"order": 17}, {"order": 18}])


def test_a_412_to_a_put_that_has_no_condition_is_no_lost_race(server, store):
    server.expect(always=Answer(412, "PreconditionFailed"))

    with pytest.raises(InvalidRequest):
        Queue(store=store, name="q").enqueue({"order": 17}, name="n17")


def test_a_404_of_s3_to_an_etag_says_that_someone_else_was_first(server, store):
    server.expect(always=GONE)

    for operation in ("put", "delete"):
        with pytest.raises(Conflict):
            CONDITIONAL[operation](store)
    for operation in ("get", "copy"):
        assert CONDITIONAL[operation](store) is None


def test_a_404_of_s3_says_that_nothing_is_there(server, store):
    server.expect(always=GONE)

    assert store.open("q/a") is None
    assert store.head("q/a") is None
    assert store.copy("q/b", "q/a") is None


def test_a_delete_of_nothing_may_be_answered_404(server, direct_store):
    """Some servers do: what was to go is gone."""
    server.expect(GONE)

    assert direct_store.delete("q/a") == datetime(2026, 11, 16, 10, 15, tzinfo=UTC)


@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_a_404_that_no_bucket_answers_does_not_say_what_became_of_the_try_before(server, store, answer):
    server.expect(LOST, always=answer)

    with pytest.raises(Unavailable, match="earlier try"):
        store.put("q/a", b"x")


def test_a_404_that_no_bucket_answers_deletes_none_of_many(server, store):
    server.objects |= {"/jobs/q/a": b"x", "/jobs/q/b": b"x"}
    server.expect(always=FOREIGN["page"])

    with pytest.raises(NotFound):
        store.delete_many({"q/a": ETAG, "q/b": ETAG})

    assert len(server.objects) == 2


def test_a_body_that_breaks_off_is_unknown_and_never_shorter(server, store):
    server.expect(always=Answer(200, broken_body=100_000))

    with pytest.raises(Unavailable, match=r"GET .*q/a"):
        store.open("q/a").read()
    with pytest.raises(Unavailable), store.open("q/a").stream as stream:
        for _ in stream:
            pass


def test_an_answer_without_a_date_is_not_guessed(server, store, monkeypatch):
    monkeypatch.setattr("support.faulty_server.DATE", "")

    with pytest.raises(Unavailable, match="Date"):
        store.put("q/a", b"x")


def test_a_copy_beyond_one_request_goes_in_parts_and_keeps_its_description(moto_endpoint, monkeypatch):
    """Tried with a small limit: S3 refuses CopyObject beyond 5 GB."""
    connected = s3_client(moto_endpoint)
    store = S3Store(fresh_bucket(connected), client=connected)
    body = b"0123456789abcdef" * 640 * 1024
    etag = store.put("large", body, metadata={"k": "v"}, content_type="text/plain").etag
    monkeypatch.setattr(s3, "COPY_BYTES", len(body) - 1)
    refusing = s3_client(moto_endpoint)

    def refuse(**_: object) -> None:
        answer = {"Error": {"Code": "InvalidRequest"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise ClientError(answer, "CopyObject")

    monkeypatch.setattr(refusing, "copy_object", refuse)
    copying = S3Store(store.url[5:], client=refusing)

    copying.copy("large", "dead/a", if_match=etag)
    copying.copy("large", "dead/b", if_absent=True, metadata={"error": "it broke"}, content_type="application/json")
    with pytest.raises(Conflict):
        copying.copy("large", "dead/a", if_absent=True, metadata={})

    kept, replaced = store.open("dead/a"), store.open("dead/b")
    assert kept.read() == replaced.read() == body
    assert (dict(kept.metadata), kept.content_type) == ({"k": "v"}, "text/plain")
    assert (dict(replaced.metadata), replaced.content_type) == ({"error": "it broke"}, "application/json")


def test_a_copy_in_parts_is_not_made_again_after_a_409(moto_endpoint, monkeypatch):
    """It may have been completed, and what it wrote been deleted since."""
    client = s3_client(moto_endpoint)
    store = S3Store(fresh_bucket(client), client=client)
    store.put("large", b"0123456789abcdef" * 640 * 1024)
    monkeypatch.setattr(s3, "COPY_BYTES", 1)
    sent = []

    def answer(operation, status, code):
        def send(**_: object) -> None:
            sent.append(operation)
            raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)

        return send

    monkeypatch.setattr(client, "copy_object", answer("CopyObject", 400, "InvalidRequest"))
    completion = answer("CompleteMultipartUpload", 409, "ConditionalRequestConflict")
    monkeypatch.setattr(client, "complete_multipart_upload", completion)

    with pytest.raises(Contended):
        store.copy("large", "dead/a")

    assert sent == ["CopyObject", "CompleteMultipartUpload"]


def test_a_copy_in_parts_whose_upload_is_gone_is_not_taken_for_one_whose_source_is(moto_endpoint, monkeypatch):
    """[P1] The message would be deleted, and its letter never be written."""
    client = s3_client(moto_endpoint)
    store = S3Store(fresh_bucket(client), client=client)
    store.put("large", b"0123456789abcdef" * 640 * 1024)
    monkeypatch.setattr(s3, "COPY_BYTES", 1)

    def answer(operation, status, code):
        def send(**_: object) -> None:
            raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)

        return send

    monkeypatch.setattr(client, "copy_object", answer("CopyObject", 400, "InvalidRequest"))
    monkeypatch.setattr(client, "complete_multipart_upload", answer("CompleteMultipartUpload", 404, "NoSuchUpload"))

    with pytest.raises(Unavailable):
        store.copy("large", "dead/a")

    store.delete("large")
    # A HEAD has no body: this is how the first request of such a copy says that there is no source.
    monkeypatch.setattr(store, "head", lambda key: ObjectInfo(**_large(key)))
    assert store.copy("large", "dead/a") is None


def _large(key: str) -> dict[str, object]:
    at = datetime(2026, 11, 16, tzinfo=UTC)
    return {"key": key, "etag": ETAG, "size": 2, "modified_at": at, "at": at}


def test_a_small_body_is_sent_without_asking_first_and_a_large_one_is_not(server, boto3_store):
    asked = []
    boto3_store._client.meta.events.register(
        "before-send.s3.PutObject", lambda request, **_: asked.append("Expect" in request.headers)
    )
    asked.clear()

    boto3_store.put("small", b"x")
    boto3_store.put("large", b"x" * s3.ASK_FIRST_BYTES)

    assert asked == [False, True]


def test_a_copy_that_fails_after_it_said_200_is_unknown(server, direct_store):
    server.expect(always=Answer(200, "InternalError"))

    with pytest.raises(Unavailable):
        direct_store.copy("q/b", "q/a")


def test_a_large_body_that_breaks_off_is_unknown_and_never_shorter(server, direct_store):
    server.expect(always=Answer(200, broken_body=3_000_000))

    with direct_store.open("q/a").stream as stream, pytest.raises(Unavailable, match="GET s3://jobs/q/a"):
        stream.read()
