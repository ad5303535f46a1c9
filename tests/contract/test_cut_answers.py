"""What both clients make of an answer whose connection ended before its head did: nothing, or what it really said.

`http.client`, below boto3, takes the end of a connection for the end of the head: half an answer looks like one with
fewer headers, and the last of them may be half a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from s3queue.errors import Unavailable
from s3queue.store import ObjectStore
from s3queue.stores import s3
from s3queue.stores.direct import DirectStore
from s3queue.stores.s3 import S3Store
from support.faulty_server import DATE
from support.manual_clock import ManualClock
from support.raw_server import raw_server
from support.s3_servers import s3_client

LISTED = (
    b"<ListBucketResult><Name>jobs</Name><Prefix/><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys>"
    b"<IsTruncated>false</IsTruncated><Contents><Key>a</Key><LastModified>2026-11-16T10:15:00Z</LastModified>"
    b'<ETag>"0123456789abcdef"</ETag><Size>5</Size></Contents></ListBucketResult>'
)
COPIED = b'<CopyObjectResult><ETag>"0123456789abcdef"</ETag></CopyObjectResult>'
DELETED = (
    b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>PreconditionFailed</Code></Error>"
    b"<Error><Key>c</Key><Code>InternalError</Code></Error></DeleteResult>"
)
DESCRIBED = f'ETag: "0123456789abcdef"\r\nLast-Modified: {DATE}\r\nx-amz-meta-kind: full\r\n'


def answer(headers: str = "", body: bytes = b"", status: str = "200 OK", chunked: bool = False) -> bytes:
    """In the order in which S3 sends its headers."""
    if chunked:
        length, body = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        length = f"Content-Length: {len(body)}"
    head = f"HTTP/1.1 {status}\r\nx-amz-request-id: 1\r\nDate: {DATE}\r\n{headers}{length}\r\nServer: AmazonS3\r\n\r\n"
    return head.encode() + body


CASES: dict[str, tuple[bytes, Callable[[ObjectStore], Any]]] = {
    "put": (answer('ETag: "0123456789abcdef"\r\n'), lambda store: store.put("a", b"x", once=True)),
    "get": (answer(DESCRIBED, b"hello"), lambda store: _whole(store.open("a"))),
    "head": (answer(DESCRIBED).replace(b"Content-Length: 0", b"Content-Length: 5"), lambda store: store.head("a")),
    "delete": (answer(status="204 No Content"), lambda store: store.delete("a")),
    # Without the trial that comes before the first one.
    "delete many": (answer(body=DELETED), lambda store: store._send_many(dict.fromkeys("abc", "e"))),  # type: ignore[attr-defined]
    "delete many chunked": (
        answer(body=DELETED, chunked=True),
        lambda store: store._send_many(dict.fromkeys("abc", "e")),
    ),  # type: ignore[attr-defined]
    "copy": (answer(body=COPIED), lambda store: store.copy("a", "b")),
    "list": (answer(body=LISTED), lambda store: store.list("")),
    "list chunked": (answer(body=LISTED, chunked=True), lambda store: store.list("")),
}


def _whole(found: Any) -> Any:
    return (found.etag, found.modified_at, found.at, found.metadata, found.read())


def _boto3(endpoint: str, tries: int = 1) -> ObjectStore:
    retries = {"mode": "standard", "total_max_attempts": tries}
    return S3Store("jobs", client=s3_client(endpoint, retries=retries), clock=ManualClock())


def _direct(endpoint: str, tries: int = 1) -> ObjectStore:
    return DirectStore("jobs", endpoint_url=endpoint, tries=tries, clock=ManualClock())


@pytest.mark.filterwarnings("ignore:tzname:dateutil.parser.UnknownTimezoneWarning")  # half of "GMT"
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", [_boto3, _direct])
def test_a_cut_answer_is_unknown_or_says_what_the_whole_one_says(
    case: str, client: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "TRIES", 1)
    whole, ask = CASES[case]
    end = whole.index(b"\r\n\r\n") + 4
    with raw_server([whole], *([whole[:cut]] for cut in range(1, end))) as server:
        store = client(server.endpoint)
        expected = ask(store)
        said: dict[int, Any] = {}
        for cut in range(1, end):
            try:
                said[cut] = ask(store)
            except Unavailable:
                continue
    wrong = {cut: found for cut, found in said.items() if found != expected}
    assert not wrong, f"{next(iter(wrong.values()))} was taken from {whole[: next(iter(wrong))][-40:]!r}"


@pytest.mark.parametrize("case", ["get", "head", "list"])
@pytest.mark.parametrize("client", [partial(_boto3, tries=2), partial(_direct, tries=2)])
def test_what_only_reads_is_asked_again_after_half_an_answer(
    case: str, client: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a Spark run, which takes a minute to start, ends because one lease could not be read."""
    # The SDK's own pause between two tries is real time.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    whole, ask = CASES[case]
    end = whole.index(b"\r\n\r\n") + 4
    # Within the head; within the body, if there is one.
    for cut in (end - 30, *([] if end == len(whole) else [(end + len(whole)) // 2])):
        with raw_server([whole[:cut]], [whole, whole]) as server:
            store = client(server.endpoint)
            assert ask(store) == ask(store)
            assert [number for _, _, number in server.requests] == [0, 1, 1]
