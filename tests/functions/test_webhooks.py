"""The webhooks queue against a real HTTP endpoint."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.local.ministack.certificate import write_certificate
from queues import webhooks
from s3queue import Processor
from s3queue.documents.lease import Lease
from support.outside_services import HttpEndpoint
from support.workbench import Workbench

SECRET = "known to sender and receiver"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpEndpoint]:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("WEBHOOK_ALLOW_LOCAL", "true")
    with HttpEndpoint.serve() as endpoint:
        yield endpoint


class Webhooks:
    def __init__(self) -> None:
        self.bench = Workbench()
        self.queue = self.bench.queue("webhooks", max_attempts=3)
        self.processor = Processor(queue=self.queue, definition=webhooks.queue)

    def post(self, url: str, payload: Any = None) -> str:
        self.path = self.queue.enqueue({"url": url, "payload": payload})
        return self.run()

    def run(self) -> str:
        return str(self.processor.run(self.path, read_first=True))

    def told(self) -> str:
        """What is stored about the message: its record, or the lease that waits."""
        kind = "records" if self.bench.keys(f"webhooks/records/{self.path}") else "leases"
        return self.bench.read(f"webhooks/{kind}/{self.path}").decode()

    def waits_seconds(self) -> float:
        lease = Lease.from_bytes(self.bench.read(f"webhooks/leases/{self.path}"), self.path)
        assert lease.retry_at
        return (lease.retry_at - self.bench.clock.now()).total_seconds()


@pytest.fixture
def queue() -> Webhooks:
    return Webhooks()


def verify(headers: dict[str, str], body: bytes, key: bytes) -> bool:
    """As a receiver does it, by the text of Standard Webhooks."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}")


def test_a_webhook_arrives_with_a_signature_over_time_and_body(queue: Webhooks, receiver: HttpEndpoint) -> None:
    assert queue.post(f"{receiver.url}/hooks?tenant=7", {"order": 17, "name": "für Ada"}) == "completed"
    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", "/hooks?tenant=7")
    assert json.loads(request.body) == {"order": 17, "name": "für Ada"}
    assert request.headers["content-type"] == "application/json"
    assert verify(request.headers, request.body, SECRET.encode())
    assert not verify(request.headers, request.body + b" ", SECRET.encode())
    assert not verify(request.headers | {"webhook-timestamp": "1"}, request.body, SECRET.encode())
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60


def test_a_secret_may_be_base64(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "whsec_" + base64.b64encode(b"\x00binary\xff").decode())
    assert queue.post(receiver.url) == "completed"
    assert verify(receiver.requests[0].headers, receiver.requests[0].body, b"\x00binary\xff")


def test_every_attempt_has_the_same_id_and_its_own_time(queue: Webhooks, receiver: HttpEndpoint) -> None:
    receiver.status = 503
    assert queue.post(receiver.url) == "retried"
    queue.bench.clock.advance(60)
    receiver.status = 204
    assert queue.run() == "completed"
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert all(verify(request.headers, request.body, SECRET.encode()) for request in receiver.requests)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 301, 302, 307])
def test_a_refusal_is_dead_at_once_and_a_redirect_is_not_followed(
    queue: Webhooks, receiver: HttpEndpoint, status: int
) -> None:
    receiver.status = status
    receiver.headers = {"Location": f"{receiver.url}/elsewhere"} if status < 400 else {}
    assert queue.post(receiver.url) == "dead"
    assert f"answered {status}" in queue.told()
    assert [request.path for request in receiver.requests] == ["/"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_trouble_at_the_receiver_is_retried(queue: Webhooks, receiver: HttpEndpoint, status: int) -> None:
    receiver.status = status
    assert queue.post(receiver.url) == "retried"
    assert f"answered {status}" in queue.told()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("999999999", webhooks.LONGEST_RETRY_AFTER),
    ],
)
def test_a_receiver_says_how_long_to_wait(queue: Webhooks, receiver: HttpEndpoint, said: str, seconds: float) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert queue.waits_seconds() == pytest.approx(seconds, abs=1)


def test_a_receiver_may_name_an_instant_to_wait_for(queue: Webhooks, receiver: HttpEndpoint) -> None:
    said = format_datetime(datetime.now(UTC) + timedelta(minutes=30), usegmt=True)
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert queue.waits_seconds() == pytest.approx(1800, abs=60)


@pytest.mark.parametrize("said", ["soon", "-5", "nan", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_a_wait_that_makes_no_sense_is_the_queues_own(queue: Webhooks, receiver: HttpEndpoint, said: str) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": said}
    assert queue.post(receiver.url) == "retried"
    assert 0 <= queue.waits_seconds() <= 2


def test_silence_is_retried(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_SECONDS", 0.2)
    receiver.silence = 1.0
    assert queue.post(receiver.url) == "retried"
    assert "TimeoutError" in queue.told()


def test_an_answer_that_never_ends_is_cut_off(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_SECONDS", 0.5)
    receiver.drip = 0.05
    start = time.monotonic()
    assert queue.post(receiver.url) == "retried"
    assert time.monotonic() - start < 5
    assert "did not answer within 0.5 seconds" in queue.told()


def test_a_handshake_that_never_ends_is_cut_off(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS from a peer that says a byte now and then: no single read ever waits long."""
    monkeypatch.setattr(webhooks, "DEADLINE_SECONDS", 0.5)

    def drip(peer: socket.socket) -> None:
        # The head of a record of 16,000 bytes, which then come one by one.
        peer.sendall(b"\x16\x03\x03\x3e\x80")
        while True:
            peer.sendall(b"\x02")
            time.sleep(0.05)

    with raw_server(drip) as port:
        start = time.monotonic()
        assert queue.post(f"https://127.0.0.1:{port}/") == "retried"
        assert time.monotonic() - start < 5
    assert "did not answer within 0.5 seconds" in queue.told()


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_SECONDS", 0.3)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])
    start = time.monotonic()
    try:
        assert queue.post("http://slow.example/") == "retried"
        assert time.monotonic() - start < 5
    finally:
        over.set()
    assert "slow.example did not answer within 0.3 seconds" in queue.told()


def answers(monkeypatch: pytest.MonkeyPatch, *replies: list[str]) -> list[str]:
    """A name server whose answers change; what was asked."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *arguments: Any, **options: Any) -> list[Any]:
        asked.append(host)
        found = replies[min(len(asked), len(replies)) - 1]
        return [one for address in found for one in real(address, port, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_a_name_that_changes_its_mind_gains_nothing(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: public when it is judged, local when it is called."""
    port = int(receiver.url.rpartition(":")[2])
    called: list[Any] = []
    real = socket.socket.connect

    def connect(peer: socket.socket, address: Any) -> None:
        called.append(address[0])
        real(peer, ("127.0.0.1", port) if address[0] == "93.184.216.34" else address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.delenv("WEBHOOK_ALLOW_LOCAL")
    asked = answers(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])

    assert queue.post(f"http://rebinding.example:{port}/") == "completed"

    assert (asked, called) == (["rebinding.example"], ["93.184.216.34"])
    # Whoever serves many names there is told which one is meant.
    assert receiver.requests[0].headers["host"] == f"rebinding.example:{port}"


def test_a_certificate_is_held_against_the_name_not_the_address(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pair.certificate, pair.key)
    named: list[str | None] = []
    served.sni_callback = lambda peer, name, context: named.append(name)

    def talk(peer: socket.socket) -> None:
        with served.wrap_socket(peer, server_side=True) as speaking, speaking.makefile("rb") as heard:
            # The whole request: closing a connection with a part of it unread would reset it before its answer is read.
            head = b"".join(iter(heard.readline, b"\r\n")).lower()
            heard.read(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
            speaking.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with raw_server(talk) as port:
        assert queue.post(f"https://localhost:{port}/") == "completed"
        answers(monkeypatch, ["127.0.0.1"])
        assert queue.post(f"https://somebody-else.example:{port}/") == "retried"
    assert named == ["localhost", "somebody-else.example"]
    assert "SSLCertVerificationError" in queue.told()


def test_of_several_addresses_only_public_ones_are_called(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []

    def refuse(peer: socket.socket, address: Any) -> None:
        called.append(address[0])
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("WEBHOOK_ALLOW_LOCAL")
    answers(monkeypatch, ["10.0.0.1", "93.184.216.34", "127.0.0.1", "2606:4700::1111", "fe80::1"])
    assert queue.post("http://mixed.example/") == "retried"
    assert called == ["93.184.216.34", "2606:4700::1111"]
    answers(monkeypatch, [f"93.184.216.{n}" for n in range(1, 60)])
    called.clear()
    assert queue.post("http://many.example/") == "retried"
    assert len(called) == webhooks.MOST_ADDRESSES


PRIVATE_V4 = st.one_of(
    *(
        st.ip_addresses(v=4, network=network)
        for network in ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
                        "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4")
    )
)  # fmt: skip
#: Ways to write an IPv4 address in an IPv6 one: the number is shifted by so many bits below the prefix.
EMBEDDED = {
    "mapped": ("::ffff:0:0", 0),
    "compatible": ("::", 0),
    "translated": ("::ffff:0:0:0", 0),
    "NAT64": ("64:ff9b::", 0),
    "NAT64, local": ("64:ff9b:1::", 0),
    "6to4": ("2002::", 80),
}


@given(PRIVATE_V4, st.integers(0, 2**80 - 1))
@settings(max_examples=300)
def test_a_private_address_is_private_however_it_is_written(address: IPv4Address, rest: int) -> None:
    assert not webhooks.is_public(address)
    for way, (prefix, shift) in EMBEDDED.items():
        wrapped = IPv6Address(int(IPv6Address(prefix)) | int(address) << shift | (rest if shift else 0))
        assert not webhooks.is_public(wrapped), (way, wrapped)
    # Teredo hides the client behind its complement, and names a server besides.
    teredo = IPv6Address(int(IPv6Address("2001::")) | int(address) << 64 | (~int(address) & 0xFFFFFFFF))
    assert not webhooks.is_public(teredo)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("64:ff9b::5db8:d822", True),
        ("::ffff:93.184.216.34", True),
        ("2002:5db8:d822::1", True),
        ("::5db8:d822", False),
        ("64:ff9b:1::5db8:d822", False),
        ("fd00:ec2::254", False),
        ("fe80::a9fe:a9fe", False),
        ("fec0::1", False),
        ("ff0e::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("::1", False),
        ("::", False),
        ("5f00::1", False),
        ("169.254.170.2", False),
    ],
)
def test_what_is_public(address: str, is_public: bool) -> None:
    assert webhooks.is_public(ip_address(address)) is is_public


@contextlib.contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where `talk` is had with each who comes, until they hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer, contextlib.suppress(OSError):
                        talk(peer)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_nobody_there_is_retried(queue: Webhooks, receiver: HttpEndpoint) -> None:
    with HttpEndpoint.serve() as gone:
        pass
    assert queue.post(gone.url) == "retried"
    assert "ConnectionRefusedError" in queue.told()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "[64:ff9b::7f00:1]", "[::7f00:1]"]
)
def test_local_addresses_are_not_called_unless_allowed(
    queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv("WEBHOOK_ALLOW_LOCAL")
    port = receiver.url.rpartition(":")[2]
    assert queue.post(f"http://{host}:{port}/2018-06-01/runtime/init/error") == "dead"
    assert "only public addresses" in queue.told()
    assert receiver.requests == []


@pytest.mark.parametrize("url", ["ftp://example.com/x", "file:///etc/passwd", "gopher://x", "/path", "http://", ""])
def test_only_http_is_spoken(queue: Webhooks, receiver: HttpEndpoint, url: str) -> None:
    assert queue.post(url) == "dead"
    assert "cannot be parsed" in queue.told()


def test_nothing_is_sent_unsigned(queue: Webhooks, receiver: HttpEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("", "whsec_not base64!"):
        monkeypatch.setenv("WEBHOOK_SECRET", secret)
        assert queue.post(receiver.url) == "retried"
        assert "WEBHOOK_SECRET" in queue.told()
        assert "not base64!" not in queue.told()
    assert receiver.requests == []
