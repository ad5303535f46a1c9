"""webhooks: delivers a JSON payload by HTTP POST, signed so that the receiver can tell who sent it, and when.

The signature follows Standard Webhooks, which has libraries in every language: `webhook-id` (the same at every attempt,
so that a second delivery can be recognised), `webhook-timestamp`, and `webhook-signature`: `v1,` + base64 of
HMAC-SHA256 over `{id}.{timestamp}.{body}`. `WEBHOOK_SECRET` is the key: text, or `whsec_` + base64.

2xx: completed. 408 and 429: retried, after `Retry-After` if the receiver sends it. Any other 4xx: dead at once. 5xx, no
answer in time, no connection: retried with backoff. Redirects are not followed; the sender has to correct the address.

Anyone who may enqueue names the address, so only public ones are called, unless `WEBHOOK_ALLOW_LOCAL` is `true`: behind
127.0.0.1 the function would reach Lambda's own runtime, and behind a private address whatever else is in its network.
A name is resolved once, and the connection goes to the very address that was judged; all of it has one deadline.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from queue import Empty, Queue
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, HttpUrl

from s3queue.errors import Reject, Retry
from s3queue.worker.context import Context
from s3queue.worker.definition import define
from s3queue.worker.secrets import secret

#: From the name to the answer: a receiver, or a name server, that sends a byte a second must not hold the worker.
DEADLINE_SECONDS = 15.0
#: A name may have as many addresses as its owner likes.
MOST_ADDRESSES = 4
#: A receiver may ask for this much patience and no more.
LONGEST_RETRY_AFTER = 3600.0
#: 4xx answers that do not mean that the message is wrong.
TRY_AGAIN = (408, 429)
ENVIRONMENT = ("WEBHOOK_ALLOW_LOCAL",)
SECRETS = ("WEBHOOK_SECRET",)
#: As getaddrinfo answers: family, kind, protocol, name, address.
Resolved = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
#: What `is_global` lets through, by version of Python: multicast, protocol assignments, relays, documentation.
_NOT_PUBLIC_V4 = [IPv4Network(text) for text in ("224.0.0.0/4", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4")]
_NOT_PUBLIC_V6 = [IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20")]

queue = define(
    "webhooks",
    visibility_timeout=60,
    handler_timeout=20,
    max_attempts=5,
    retry_base=2,
    concurrency=5,
    memory_mib=256,
    max_message_size="1 MiB",
    events="failures",
)


class Webhook(BaseModel):
    """What producers PUT, as JSON."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: HttpUrl
    payload: Any = None


@queue.handler
def post(webhook: Webhook, context: Context) -> dict[str, Any]:
    """Deliver one webhook."""
    url = urlsplit(str(webhook.url))
    body = json.dumps(webhook.payload, separators=(",", ":"), ensure_ascii=False).encode()
    status, retry_after = _exchange(url, body, signed(body, context))
    if 200 <= status < 300:
        return {"status": status}
    reason = f"{url.hostname} answered {status}"
    if status in TRY_AGAIN:
        raise Retry(reason, after=retry_after)
    if 300 <= status < 400:
        raise Reject(f"{reason}: redirects are not followed; enqueue the new address")
    if 400 <= status < 500:
        raise Reject(reason)
    raise ConnectionError(reason)


def signed(body: bytes, context: Context, at: datetime | None = None) -> dict[str, str]:
    """The headers that prove who sent this body, and when."""
    known = secret("WEBHOOK_SECRET")
    if not known:
        raise RuntimeError("the webhook cannot be signed: set WEBHOOK_SECRET to the secret that the receivers know")
    identity = f"{context.queue}/{context.path}/{context.line}/{context.enqueued_at.isoformat()}"
    name = f"msg_{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    timestamp = str(int((at or datetime.now(UTC)).timestamp()))
    signature = hmac.digest(_key(known), b".".join((name.encode(), timestamp.encode(), body)), "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def _key(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        # Without the cause: it would reveal the secret's length and characters.
        raise RuntimeError("WEBHOOK_SECRET starts with whsec_, but the rest is not base64") from None


def _exchange(url: SplitResult, body: bytes, headers: dict[str, str]) -> tuple[int, float | None]:
    """POST, and the answer's status and `Retry-After`."""
    assert url.hostname
    deadline = Deadline(DEADLINE_SECONDS, url.hostname)
    # It only speaks HTTP here; what it speaks over is connected below.
    speaks = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = speaks(url.hostname, url.port)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    try:
        addresses = _public(url.hostname, _resolved(url.hostname, connection.port, deadline))
        connection.sock = _connected(addresses, deadline)
        with deadline.hanging_up(connection.sock):
            if url.scheme == "https":
                # The name for the certificate and for whoever serves many names there; the address is settled.
                trust = ssl.create_default_context()
                connection.sock = trust.wrap_socket(
                    connection.sock, server_hostname=url.hostname, do_handshake_on_connect=False
                )
                connection.sock.do_handshake()
            connection.request("POST", target, body, {"Content-Type": "application/json"} | headers)
            answer = connection.getresponse()
        return answer.status, _retry_after(answer.headers.get("Retry-After"))
    except (HTTPException, OSError) as error:
        deadline.check()
        if isinstance(error, HTTPException):
            raise ConnectionError(f"{url.hostname} did not answer in HTTP: {type(error).__name__}") from None
        raise
    finally:
        connection.close()


class Deadline:
    """One instant by which everything has to be done."""

    def __init__(self, seconds: float, host: str) -> None:
        self._at = time.monotonic() + seconds
        self.said = f"{host} did not answer within {seconds:g} seconds"

    def check(self) -> float:
        """The seconds that are left.

        Raises:
            TimeoutError: none.
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(self.said)
        return left

    @contextmanager
    def hanging_up(self, peer: socket.socket) -> Iterator[None]:
        """Cut a connection off when the time is up, whatever it is doing: a time-out counts from the last byte."""
        # A handle of its own: TLS takes the other one over.
        with peer.dup() as handle:
            ending = threading.Timer(self.check(), _hang_up, [handle])
            ending.start()
            try:
                yield
            finally:
                ending.cancel()


def _hang_up(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _resolved(host: str, port: int, deadline: Deadline) -> Sequence[Resolved]:
    """Asked once: a name can be made to resolve differently the second time."""
    answers: Queue[Sequence[Resolved] | OSError] = Queue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(f"{host} is not a name: {error}"))

    # getaddrinfo has no time-out of its own, and a name server may take its time.
    threading.Thread(target=ask, name="webhooks-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.check())
    except Empty:
        raise TimeoutError(deadline.said) from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _public(host: str, found: Sequence[Resolved]) -> Sequence[Resolved]:
    """Those that may be called.

    Raises:
        Reject: none of them.
    """
    if os.environ.get("WEBHOOK_ALLOW_LOCAL") == "true":
        return found[:MOST_ADDRESSES]
    public = [one for one in found if is_public(ip_address(str(one[4][0]).partition("%")[0]))]
    if not public:
        raise Reject(f"{host} is a local address; this queue calls only public addresses")
    return public[:MOST_ADDRESSES]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is somebody's on the internet, however it is written.

    What carries an IPv4 address inside (mapped, NAT64, 6to4) leads to that one, so that one is judged. All other IPv6
    addresses but global unicast are local or of no use: Teredo, IPv4-compatible, link-local, multicast.
    """
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_V4)
    if address.ipv4_mapped:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour and not is_public(address.sixtofour):
        return False
    return address.is_global and address in _GLOBAL_UNICAST and not any(address in one for one in _NOT_PUBLIC_V6)


def _connected(addresses: Sequence[Resolved], deadline: Deadline) -> socket.socket:
    """To the first one that answers; each has its share of the time."""
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        peer = socket.socket(family, kind, protocol)
        try:
            peer.settimeout(deadline.check() / (len(addresses) - number))
            peer.connect(address)
            peer.settimeout(deadline.check())
        except OSError:
            peer.close()
            if number == len(addresses) - 1:
                raise
        else:
            return peer
    raise AssertionError("there is at least one")


def _retry_after(said: str | None) -> float | None:
    """Seconds, from a number of seconds or a date; None if there is no valid value."""
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            at = parsedate_to_datetime(said)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    # A comparison with NaN is always false, so NaN gives None.
    return min(seconds, LONGEST_RETRY_AFTER) if seconds >= 0 else None
