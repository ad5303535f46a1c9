"""What the client without an SDK makes of bytes that no decent server sends, and of connections that are no more."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import ipaddress
import os
import socket
import ssl
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError, MetadataRetrievalError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from s3queue.errors import AccessDenied, InvalidRequest, MessageTooLarge, NotFound, Unavailable
from s3queue.stores import connection, connections
from s3queue.stores.connections import Answer, Connections
from s3queue.stores.direct import DirectStore
from support.faulty_server import DATE
from support.manual_clock import ManualClock
from support.raw_server import Raw, raw_server

LARGE = b"x" * connections.ASK_FIRST_BYTES


def answer(status: str, body: bytes = b"", *, length: int | None = None, etag: str = '"e"') -> bytes:
    size = len(body) if length is None else length
    head = (
        f"HTTP/1.1 {status}\r\nDate: {DATE}\r\nLast-Modified: {DATE}\r\nETag: {etag}\r\nContent-Length: {size}\r\n\r\n"
    )
    return head.encode() + body


OK = answer("200 OK")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_ANSWER = b""


def store_at(server: Raw, tries: int = 1, clock: ManualClock | None = None) -> DirectStore:
    return DirectStore("jobs", endpoint_url=server.endpoint, tries=tries, clock=clock or ManualClock())


@pytest.mark.parametrize("cut", range(1, len(OK), 7))
def test_half_an_answer_is_none(cut):
    with raw_server([OK[:cut]]) as server, pytest.raises(Unavailable):
        store_at(server).put("a", b"x")


@pytest.mark.parametrize(
    ("first", "request_of"),
    [
        (OK + answer("412 Precondition Failed"), lambda store: store.put("a", b"x")),
        (answer("200 OK", b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n"), lambda store: store.head("a")),
        (answer("204 No Content", answer("412 No")), lambda store: store.delete("a")),
        (
            answer("200 OK", LARGE + b"x" + answer("412 No"), length=len(LARGE) + 1),
            lambda store: store.open("a").read(),
        ),
    ],
)
def test_bytes_behind_an_answer_are_never_the_next_ones_answer(first, request_of):
    with raw_server([first, OK], [OK]) as server:
        store = store_at(server)
        request_of(store)

        store.put("b", b"y", if_absent=True)

        assert server.requests[-1] == ("PUT /jobs/b HTTP/1.1", b"y", 1)


def test_an_object_without_a_length_may_have_been_cut_off():
    cut_off = f'HTTP/1.1 200 OK\r\nDate: {DATE}\r\nLast-Modified: {DATE}\r\nETag: "e"\r\n\r\nhalf of'.encode()

    with raw_server([cut_off]) as server, pytest.raises(Unavailable, match="GET s3://jobs/a"):
        store_at(server).open("a")


def test_chunks_are_put_together_and_their_connection_is_kept():
    chunked = (
        f'HTTP/1.1 200 OK\r\nDate: {DATE}\r\nLast-Modified: {DATE}\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n'
    )
    with raw_server([chunked.encode() + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: t\r\n\r\n", OK]) as server:
        store = store_at(server)

        assert store.open("a").read() == b"abcde"
        store.put("b", b"")

        assert server.requests[-1][2] == 0


def test_chunks_that_break_off_are_unknown():
    head = (
        f'HTTP/1.1 200 OK\r\nDate: {DATE}\r\nLast-Modified: {DATE}\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n'
    )
    for end in (b"", b"3\r\nab", b"3\r\nabc\r\n", b"3\r\nabc\r\n0\r\n"):
        with raw_server([head.encode() + end]) as server, pytest.raises(Unavailable):
            store_at(server).open("a")


class Changing(io.BytesIO):
    """A file that someone else writes to after it was measured."""

    def __init__(self, before: bytes, after: bytes) -> None:
        super().__init__(before)
        self._after = after

    def read(self, size: int | None = -1) -> bytes:
        if self.getvalue() != self._after:
            at = self.tell()
            self.seek(0)
            self.truncate()
            self.write(self._after)
            self.seek(at)
        return super().read(size)


@pytest.mark.parametrize(("before", "after"), [(b"abc", b"abcdef"), (b"abcdef", b"abc")])
def test_a_body_that_changes_its_length_is_sent_whole_or_not_at_all(before, after):
    with raw_server([OK], [OK]) as server:
        with pytest.raises(Unavailable, match="changed its length"):
            store_at(server).put("a", Changing(before, after))

        store_at(server, tries=2).put("a", Changing(after, after))

        assert server.requests == [("PUT /jobs/a HTTP/1.1", after, 1)]


def test_a_body_that_refuses_to_be_read_says_why():
    class Limited(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise MessageTooLarge("too large")

    with raw_server([OK]) as server, pytest.raises(MessageTooLarge):
        store_at(server).put("a", Limited(b"x"))


@pytest.mark.parametrize("go_on", [CONTINUE, (b"HTTP/1.1 1", b"00 Continue\r\n", b"\r\n"), NO_ANSWER])
def test_a_large_body_is_sent_when_it_is_asked_for_or_when_nobody_says_a_word(go_on, monkeypatch):
    monkeypatch.setattr(connection, "ASK_SECONDS", 0.2)

    with raw_server([go_on, OK]) as server:
        store_at(server).put("a", LARGE)

        assert server.requests[-1] == ("PUT /jobs/a HTTP/1.1", LARGE, 0)


def test_a_large_body_that_is_refused_is_not_sent_and_its_connection_not_used_again():
    with raw_server([answer("503 Slow Down")], [CONTINUE, OK]) as server:
        store_at(server, tries=2).put("a", io.BytesIO(LARGE))

        assert server.requests == [("PUT /jobs/a HTTP/1.1", LARGE, 1)]


def test_a_connection_that_answered_before_it_had_the_body_is_not_used_again():
    with raw_server([CONTINUE + answer("503 Slow Down"), NO_ANSWER, CONTINUE, OK], [CONTINUE, OK]) as server:
        store_at(server, tries=2).put("a", LARGE)

        assert ("PUT /jobs/a HTTP/1.1", LARGE, 1) in server.requests


def test_a_success_without_the_body_is_none():
    with raw_server([OK]) as server, pytest.raises(Unavailable, match="before the body was sent"):
        store_at(server).put("a", LARGE)


def test_a_tls_server_that_says_nothing_gets_its_large_body_too(monkeypatch, tmp_path):
    """TLS 1.3 sends tickets at its start: bytes, but no answer."""
    monkeypatch.setattr(connection, "ASK_SECONDS", 0.2)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "server.pem"))
    tls = certified(tmp_path / "server.pem")

    with raw_server([NO_ANSWER, OK, OK], tls=tls) as server:
        store = store_at(server)
        store.put("a", LARGE)
        store.put("b", b"x")

        assert [(len(body), number) for _, body, number in server.requests] == [(len(LARGE), 0), (1, 0)]


def test_bytes_behind_a_large_body_are_never_the_next_ones_answer_over_tls(monkeypatch, tmp_path):
    """Decrypted with the body's end, they are where neither we nor the socket would see them."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "server.pem"))
    tls = certified(tmp_path / "server.pem")
    large = answer("200 OK", LARGE + b"x" + answer("412 No"), length=len(LARGE) + 1)

    with raw_server([large, OK], [OK], tls=tls) as server:
        store = store_at(server)
        store.open("a").read()

        store.put("b", b"y")

        assert server.requests[-1] == ("PUT /jobs/b HTTP/1.1", b"y", 1)


def certified(path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, *private)
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_a_connection_is_kept_but_not_for_long():
    """A frozen function does not hear the server hang up, and its first request would go nowhere."""
    clock = ManualClock()
    with raw_server([OK, OK, OK], [OK]) as server:
        store = store_at(server, clock=clock)
        store.put("a", b"")
        clock.advance(connections.IDLE / 2)
        store.put("b", b"")
        clock.advance(connections.IDLE)
        store.put("c", b"")

        assert [number for _, _, number in server.requests] == [0, 0, 1]


def test_after_a_dead_connection_the_others_are_not_tried():
    large = answer("200 OK", LARGE + b"x")
    with raw_server([large, NO_ANSWER], [large, NO_ANSWER], [OK]) as server:
        store = store_at(server, tries=2)
        both = [store.open("a"), store.open("b")]
        for found in both:
            found.read()

        store.put("c", b"x")

        assert server.requests[-1] == ("PUT /jobs/c HTTP/1.1", b"x", 2)


def test_after_a_fork_each_process_has_connections_of_its_own():
    with raw_server([OK, OK], [OK]) as server:
        store = store_at(server)
        store.put("a", b"")
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                store.put("child", b"")
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

        store.put("parent", b"")

        assert [(line.split()[1], number) for line, _, number in server.requests] == [
            ("/jobs/a", 0),
            ("/jobs/child", 1),
            ("/jobs/parent", 0),
        ]


def test_a_proxy_is_told_who_asks(monkeypatch):
    with raw_server([b"HTTP/1.1 502 Bad Gateway\r\n\r\n"]) as proxy:
        monkeypatch.setenv("https_proxy", proxy.endpoint.replace("://", "://me:p%40ss@"))
        with pytest.raises(Unavailable, match="502"):
            DirectStore("jobs", endpoint_url="https://s3.example", tries=1).head("a")

    assert proxy.requests[0][0].startswith("CONNECT s3.example:443 ")
    assert b"proxy-authorization: basic " + b64encode(b"me:p@ss").lower() in proxy.heads[0]


@pytest.mark.parametrize("endpoint", ["http://[::1]", "https://[::1]", "http://example", "https://example:8443"])
def test_every_endpoint_is_called_at_its_own_port(endpoint, monkeypatch):
    called = []

    def refuse(address, *_: object, **__: object) -> None:
        called.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unavailable):
        DirectStore("jobs", endpoint_url=endpoint, tries=1).head("a")

    assert called == [
        {
            "http://[::1]": ("::1", 80),
            "https://[::1]": ("::1", 443),
            "http://example": ("example", 80),
            "https://example:8443": ("example", 8443),
        }[endpoint]
    ]


@pytest.mark.parametrize("endpoint", ["localhost:9000", "localhost", "ftp://localhost", "http://"])
def test_an_endpoint_that_is_none_is_refused_at_once(endpoint):
    with pytest.raises(InvalidRequest, match="endpoint"):
        DirectStore("jobs", endpoint_url=endpoint)


@pytest.mark.parametrize("bucket", ["my bucket", "jobs?x", "j\u00f6bs", "user@jobs", ""])
def test_a_bucket_that_cannot_be_one_is_refused_at_once(bucket):
    with pytest.raises(InvalidRequest, match="bucket"):
        DirectStore(bucket, endpoint_url="http://localhost")


@pytest.mark.parametrize("name", ["a\r\nif-match", "a b", "a:b", "\u00e4"])
def test_a_metadata_name_is_never_another_header(name):
    with raw_server([OK]) as server:
        with pytest.raises(InvalidRequest, match="metadata"):
            store_at(server).put("a", b"x", metadata={name: "v"})

        assert server.requests == []


@pytest.mark.parametrize("missing", [b"ETag", b"Date", b"Last-Modified"])
def test_an_answer_without_what_we_need_is_unknown(missing):
    with raw_server([answer("200 OK", b"x").replace(missing, b"X-Other")]) as server, pytest.raises(Unavailable):
        store_at(server).open("a")


def test_a_date_that_is_none_is_unknown():
    with raw_server([OK.replace(DATE.encode(), b"today")]) as server, pytest.raises(Unavailable, match="today"):
        store_at(server).put("a", b"x")


def test_a_proxys_page_is_no_empty_bucket():
    with raw_server([answer("200 OK", b"<html><body/></html>")]) as server, pytest.raises(Unavailable, match="html"):
        store_at(server).list("q/")


def test_a_long_copy_is_answered_with_blanks_first():
    copied = b"   \n<?xml version='1.0'?><CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>"
    with raw_server([answer("200 OK", copied)]) as server:
        assert store_at(server).copy("a", "b").etag == "e"


@pytest.mark.parametrize(
    ("bucket", "environment", "expected"),
    [
        ("jobs", {}, "https://jobs.s3.eu-west-1.amazonaws.com /"),
        ("my.jobs", {}, "https://s3.eu-west-1.amazonaws.com /my.jobs/"),
        ("Jobs", {}, "https://s3.eu-west-1.amazonaws.com /Jobs/"),
        ("my_jobs", {}, "https://s3.eu-west-1.amazonaws.com /my_jobs/"),
        ("jobs", {"AWS_DEFAULT_REGION": "cn-north-1"}, "https://jobs.s3.cn-north-1.amazonaws.com.cn /"),
        ("jobs", {"AWS_DEFAULT_REGION": "eusc-de-east-1"}, "https://jobs.s3.eusc-de-east-1.amazonaws.eu /"),
        ("jobs", {"AWS_DEFAULT_REGION": "us-gov-west-1"}, "https://jobs.s3.us-gov-west-1.amazonaws.com /"),
        ("jobs", {"AWS_REGION": "us-east-2"}, "https://jobs.s3.eu-west-1.amazonaws.com /"),
        ("jobs", {"AWS_USE_FIPS_ENDPOINT": "true"}, "https://s3-fips.eu-west-1.amazonaws.com /jobs/"),
        (
            "jobs",
            {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_DEFAULT_REGION": "us-east-1"},
            "https://s3-fips.us-east-1.amazonaws.com /jobs/",
        ),
        ("jobs", {"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "https://jobs.s3.dualstack.eu-west-1.amazonaws.com /"),
        ("jobs", {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT_URL_S3": "http://two"}, "http://two /jobs/"),
        ("jobs", {"AWS_ENDPOINT_URL": "http://one/base/"}, "http://one/base/ /base/jobs/"),
        (
            "jobs",
            {"AWS_ENDPOINT_URL": "http://one", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            "https://jobs.s3.eu-west-1.amazonaws.com /",
        ),
    ],
)
def test_the_address_is_the_one_that_boto3_would_find(bucket, environment, expected, monkeypatch):
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    for name, value in ({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-1"} | environment).items():
        monkeypatch.setenv(name, value)

    place, connections = DirectStore(bucket)._at

    assert f"{connections._address.geturl()} {place.root}" == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "https://jobs.s3.ap-south-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "us-east-1"}, "https://jobs.s3.ap-south-1.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "https://jobs.s3.dualstack.ap-south-1.amazonaws.com"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "https://s3-fips.ap-south-1.amazonaws.com"),
    ],
)
@pytest.mark.parametrize(("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")])
def test_a_bucket_in_another_region_is_followed_there(status, code, environment, expected, monkeypatch):
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    for name, value in ({"AWS_DEFAULT_REGION": "eu-west-1"} | environment).items():
        monkeypatch.setenv(name, value)
    asked = []

    def send(self, method, path, headers=(), body=b"", **options):
        asked.append((self._address.geturl(), self._region, body.read()))
        if self._region != "ap-south-1":
            return Answer(status, {"x-amz-bucket-region": "ap-south-1"}, f"<Error><Code>{code}</Code></Error>".encode())
        return Answer(200, {"etag": '"e"', "date": "Mon, 16 Nov 2026 12:00:00 GMT"}, b"")

    monkeypatch.setattr(Connections, "send", send)
    store = DirectStore("jobs")

    for text in (b"one", b"two"):
        store.put("q/a", io.BytesIO(text))

    assert [body for _, _, body in asked] == [b"one", b"one", b"two"]
    assert {(address, region) for address, region, _ in asked[1:]} == {(expected, "ap-south-1")}


@pytest.mark.parametrize("address", ["https://s3-us-west-2.amazonaws.com", "https://s3-external-1.amazonaws.com"])
def test_a_bucket_that_is_followed_to_a_host_of_its_own_has_the_same_keys_there(address, monkeypatch):
    asked = []

    def send(self, method, path, headers=(), body=b"", **options):
        asked.append(f"{self._address.geturl()}{path}")
        if self._region != "ap-south-1":
            return Answer(301, {"x-amz-bucket-region": "ap-south-1"}, b"<Error><Code>PermanentRedirect</Code></Error>")
        return Answer(200, {"etag": '"e"', "date": "Mon, 16 Nov 2026 12:00:00 GMT"}, b"")

    monkeypatch.setattr(Connections, "send", send)
    DirectStore("jobs", endpoint_url=address, region="us-west-2").put("q/a", b"x")

    assert asked == [f"{address}/jobs/q/a", "https://jobs.s3.ap-south-1.amazonaws.com/q/a"]


def test_threads_that_are_told_of_another_region_at_once_all_go_there(monkeypatch):
    told = threading.Barrier(2)

    def send(self, method, path, headers=(), body=b"", **options):
        if self._region == "ap-south-1":
            return Answer(200, {"etag": '"e"', "date": "Mon, 16 Nov 2026 12:00:00 GMT"}, b"")
        told.wait(60)
        return Answer(301, {"x-amz-bucket-region": "ap-south-1"}, b"<Error><Code>PermanentRedirect</Code></Error>")

    monkeypatch.setattr(Connections, "send", send)
    store = DirectStore("jobs", endpoint_url="https://s3.us-west-2.amazonaws.com", region="us-west-2")

    with ThreadPoolExecutor(2) as pool:
        written = list(pool.map(lambda key: store.put(key, b"x", once=True), ("q/a", "q/b")))

    assert [one.etag for one in written] == ["e", "e"]


@pytest.mark.parametrize("region", ["evil.example/", "ap-south-1.evil.example#", "eu-west-1", ""])
def test_a_region_that_is_none_or_our_own_is_not_followed(region, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    answer = Answer(301, {"x-amz-bucket-region": region}, b"<Error><Code>PermanentRedirect</Code></Error>")
    monkeypatch.setattr(Connections, "send", lambda *arguments, **options: answer)

    with pytest.raises(NotFound, match="region"):
        DirectStore("jobs").open("q/a")


def test_an_address_that_was_given_is_the_one_that_was_meant(monkeypatch):
    answer = Answer(301, {"x-amz-bucket-region": "ap-south-1"}, b"<Error><Code>PermanentRedirect</Code></Error>")
    monkeypatch.setattr(Connections, "send", lambda *arguments, **options: answer)

    with pytest.raises(NotFound, match="region"):
        DirectStore("jobs", endpoint_url="http://127.0.0.1:9", region="eu-west-1").open("q/a")


def test_the_address_in_a_file_counts_too(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://from-a-file\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)

    assert DirectStore("jobs")._at[0].host == "http://from-a-file"


@pytest.mark.parametrize(
    "failure",
    [
        MetadataRetrievalError(error_msg="no answer"),
        ClientError({"Error": {"Code": "Throttling"}}, "AssumeRole"),
        RuntimeError("the refreshed credentials are still expired"),
    ],
)
def test_credentials_that_cannot_be_renewed_now_are_no_missing_permission(failure, monkeypatch):
    class Expired:
        def get_frozen_credentials(self) -> None:
            raise failure

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("boto3.Session.get_credentials", lambda _: Expired())

    with pytest.raises(Unavailable, match="credentials"):
        DirectStore("jobs", endpoint_url="http://localhost").head("a")


def test_half_of_the_credentials_are_a_matter_of_access(monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(AccessDenied, match="AWS_SECRET_ACCESS_KEY"):
        DirectStore("jobs", endpoint_url="http://localhost").head("a")
