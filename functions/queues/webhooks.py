"""webhooks: delivers a JSON payload by HTTP POST, signed so that the receiver can tell who sent it, and when.

The signature follows Standard Webhooks, which has libraries in every language: `webhook-id` (the same at every attempt,
so that a second delivery can be recognised), `webhook-timestamp`, and `webhook-signature`: `v1,` + base64 of
HMAC-SHA256 over `{id}.{timestamp}.{body}`. `WEBHOOK_SECRET` is the key: text, or `whsec_` + base64.

2xx: completed. 408 and 429: retried, after `Retry-After` if the receiver sends it. Any other 4xx: dead at once. 5xx, no
answer in time, no connection: retried with backoff. Redirects are not followed; the sender has to correct the address.

Anyone who may enqueue chooses the address, so only public addresses are called, unless `WEBHOOK_ALLOW_LOCAL` is `true`:
at 127.0.0.1 the function would reach Lambda's own runtime, at a private address other systems of its network.
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
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, HttpUrl

from s3queue.errors import Reject, Retry
from s3queue.worker.context import Context
from s3queue.worker.definition import define

#: Time-outs for each step of the exchange, and for all of it: a receiver that sends a byte a second must not block.
STEP_SECONDS = 8.0
ANSWER_SECONDS = 15.0
#: The longest `Retry-After` that is respected.
LONGEST_RETRY_AFTER = 3600.0
#: 4xx answers that do not mean that the message is wrong.
TRY_AGAIN = (408, 429)
ENVIRONMENT = ("WEBHOOK_ALLOW_LOCAL", "WEBHOOK_SECRET")

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
    secret = os.environ.get("WEBHOOK_SECRET", "")
    if not secret:
        raise RuntimeError("the webhook cannot be signed: set WEBHOOK_SECRET to the secret that the receivers know")
    identity = f"{context.queue}/{context.path}/{context.line}/{context.enqueued_at.isoformat()}"
    name = f"msg_{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    timestamp = str(int((at or datetime.now(UTC)).timestamp()))
    signature = hmac.digest(_key(secret), b".".join((name.encode(), timestamp.encode(), body)), "sha256")
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
    connection = (
        HTTPSConnection(url.hostname, url.port, timeout=STEP_SECONDS, context=ssl.create_default_context())
        if url.scheme == "https"
        else HTTPConnection(url.hostname, url.port, timeout=STEP_SECONDS)
    )
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    try:
        connection.connect()
        # Checked after connecting, not before: a name can resolve to another address the second time.
        _check_peer(connection)
        ending = threading.Timer(ANSWER_SECONDS, _hang_up, [connection.sock])
        ending.start()
        try:
            connection.request("POST", target, body, {"Content-Type": "application/json"} | headers)
            answer = connection.getresponse()
        finally:
            ending.cancel()
        return answer.status, _retry_after(answer.headers.get("Retry-After"))
    except HTTPException as error:
        raise ConnectionError(f"{url.hostname} did not answer with HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _check_peer(connection: HTTPConnection) -> None:
    peer = ip_address(connection.sock.getpeername()[0])
    mapped = getattr(peer, "ipv4_mapped", None) or peer
    if not mapped.is_global and os.environ.get("WEBHOOK_ALLOW_LOCAL") != "true":
        raise Reject(f"{connection.host} is a local address; this queue calls only public addresses")


def _hang_up(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


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
