"""Serves MiniStack. Runs inside MiniStack's own environment, so it imports nothing of this repository.

It adds what AWS has, this stack relies on, and MiniStack 1.5.33 lacks. One of these is that only those who know a
secret get in: MiniStack takes anybody who says `test` for root, and this port runs code. It stops when whoever started
it is gone, however that came about: the starter holds the other end of standard input, and its end is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import resource
import signal
import sys
import threading
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote
from xml.sax.saxutils import escape

import boto3
from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack import app as ministack_app
from ministack.app import app
from ministack.core import iam_actions, iam_evaluator, lambda_runtime, sigv4
from ministack.services import lambda_svc, sts
from ministack.services.cloudformation import provisioners

# Beside this file, which is started by its path.
from nested_updates import remember_attributes
from shared_code import unpack_once
from throttled_events import keep_throttled_events

#: Answers which functions are at work, and on how many events each; to those who send the secret as it is.
AT_WORK = "/_s3queue/at-work"
SAVE = "/_s3queue/save"
SECRET_HEADER = "x-s3queue-secret"
#: Needs no signature: it says whether MiniStack is up.
READY = "/_ministack/ready"
#: Custom resources answer to an address with a random name in it, unsigned, as on AWS.
ANSWERS = ("/_ministack/cfn-response/", "/_ministack/cfn-signal/")
ACCOUNT = "000000000000"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--keep-throttled", action="store_true")
    arguments = parser.parse_args()

    know_what_a_put_says()
    accept_metric_math()
    remember_attributes()
    unpack_once()
    keep_failed_events(arguments.port, arguments.certificate)
    if arguments.keep_throttled:
        keep_throttled_events(lambda_svc)
    make_roles_unguessable(os.environ["AWS_SECRET_ACCESS_KEY"])
    threading.Thread(target=end_with_starter, daemon=True).start()
    # A burst of messages is a burst of sockets.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    config = Config()
    config.bind = [f"127.0.0.1:{arguments.port}"]
    config.keep_alive_timeout = 75
    config.certfile, config.keyfile = arguments.certificate, arguments.key
    hosts = {f"{name}:{arguments.port}" for name in ("127.0.0.1", "localhost")}
    asyncio.run(serve_until_told(config, Guard(hosts, os.environ["AWS_SECRET_ACCESS_KEY"])))


async def serve_until_told(config: Config, guard: Guard) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def told() -> None:
        await stop.wait()

    await serve(guard, config, shutdown_trigger=told)


class Guard:
    """Lets through to MiniStack what was signed with a secret that it gave out itself, or was started with.

    A page in the developer's browser and another user of this machine reach this port, too. Root is checked like
    everyone else: its access key may be anything, its secret is random at every start.
    """

    def __init__(self, hosts: set[str], secret: str) -> None:
        self._hosts, self._secret = hosts, secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No service that is used here speaks WebSocket.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), sigv4.decode_header_value(value)
            headers[key] = f"{headers[key]},{text}" if key in headers else text
        refused = self._foreign(headers)
        if refused is None and scope["path"] in (AT_WORK, SAVE):
            if not hmac.compare_digest(headers.get(SECRET_HEADER, "").encode(), self._secret.encode()):
                await answer(send, 403, {"message": "the secret is missing"})
                return
            if scope["path"] == SAVE:
                await asyncio.to_thread(save)
                await answer(send, 200, {})
                return
            _, in_flight = lambda_svc.executions_in_flight()
            await answer(send, 200, {key.rpartition(":")[2]: count for key, count in in_flight.items()})
            return
        if refused is None and not self._is_open(scope["method"], scope["path"]):
            body = b""
            if needs_body(headers):
                body = await read(receive)
                receive = repeating(body, receive)
            refused = unsigned(scope, headers, body)
        if refused is None:
            await app(scope, receive, send)
        else:
            await refuse(send, refused, as_json="json" in headers.get("content-type", ""))

    def _foreign(self, headers: dict[str, str]) -> str | None:
        if headers.get("host") not in self._hosts:
            return "this server answers for 127.0.0.1 only"
        if headers.get("origin", "").rpartition("//")[2] not in {"", *self._hosts}:
            return "another site asked for this"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "another site asked for this"
        return None

    def _is_open(self, method: str, path: str) -> bool:
        return (method == "GET" and path == READY) or (method == "PUT" and path.startswith(ANSWERS))


def unsigned(scope: Any, headers: dict[str, str], body: bytes) -> str | None:
    """Why a request's signature is none of ours; None: it is."""
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    raw_path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    authorization = headers.get("authorization", "")
    is_presigned = not authorization and "X-Amz-Signature" in query
    if authorization.startswith("AWS ") or "AWSAccessKeyId" in query:
        return unsigned_v2(scope["method"], raw_path, query, headers)
    if not authorization.startswith("AWS4-HMAC-SHA256 ") and not is_presigned:
        return "the request is not signed"
    found = sigv4.parse_query_signature(query) if is_presigned else sigv4.parse_header_signature(headers)
    if isinstance(found, tuple):
        return str(found[1])
    if is_presigned:
        try:
            if sigv4.presigned_request_is_expired(found.amz_date, query.get("X-Amz-Expires", ["0"])[0]):
                return "the request has expired"
        except ValueError:
            return "the request has no valid expiry"
        token = query.get("X-Amz-Security-Token", [""])[0]
    else:
        if skewed := sigv4.request_time_failure(found):
            return str(skewed[1])
        token = headers.get("x-amz-security-token", "")
    credential = credential_of(found.access_key_id, token)
    if isinstance(credential, iam_evaluator.CredentialResolutionError):
        return str(credential.message)
    failure = sigv4.header_signature_failure(
        found,
        credential.secret_access_key,
        scope["method"],
        raw_path,
        query,
        headers,
        body,
        presigned=is_presigned,
    )
    return str(failure[1]) if failure else None


def unsigned_v2(method: str, raw_path: str, query: dict[str, list[str]], headers: dict[str, str]) -> str | None:
    """The same for boto3's presigned URLs of us-east-1, unless they are asked for in version 4."""
    authorization = headers.get("authorization", "")
    key = iam_evaluator._query_value(query, "AWSAccessKeyId") or authorization[4:].partition(":")[0]
    if not key:
        return "the request is not signed"
    request = iam_evaluator.SignedRequest(key, method, raw_path, query, headers, sigv2=True, auth_path=raw_path)
    checked = iam_evaluator._sigv2_check(request, account_of(key))
    return str(checked.message) if isinstance(checked, iam_evaluator.AuthError) else None


def credential_of(key: str, token: str) -> Any:
    return iam_evaluator.resolve_credential(key, account_of(key), token)


def account_of(key: str) -> str:
    if len(key) == 12 and key.isascii() and key.isdigit():
        return key
    session = sts._sessions.get(key) or {}
    try:
        found = iam_evaluator.find_iam_access_key_account(key)
    except iam_evaluator.AmbiguousAccessKeyError:
        found = None
    return str(session.get("AccountId") or found or ACCOUNT)


def needs_body(headers: dict[str, str]) -> bool:
    """Whether the signature is of the body itself; most say its hash in a header."""
    said = headers.get("x-amz-content-sha256", "")
    return not said or said.startswith("STREAMING-AWS4")


async def read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def repeating(body: bytes, receive: Any) -> Any:
    """What was read, once more, and then whatever else comes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again


async def refuse(send: Any, why: str, *, as_json: bool) -> None:
    """In words that SDKs understand, of whichever service they thought that they were asking."""
    if as_json:
        await answer(send, 403, {"__type": "AccessDenied", "message": why})
        return
    body = f"<ErrorResponse><Error><Code>AccessDenied</Code><Message>{escape(why)}</Message></Error></ErrorResponse>"
    await answer(send, 403, body)


async def answer(send: Any, status: int, body: Any) -> None:
    kind, text = (b"application/xml", body) if isinstance(body, str) else (b"application/json", json.dumps(body))
    headers = [(b"content-type", kind)]
    if status != 200:
        # The connection ends with a refusal: its body was not read.
        headers += [(b"connection", b"close"), (b"x-amzn-errortype", b"AccessDenied")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def make_roles_unguessable(secret: str) -> None:
    """Give each role's session a secret of this start: MiniStack's is a hash of the function's name."""
    original = lambda_runtime.execution_credentials

    def salted(config: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = original(config)
        session = sts._sessions.get(found["AWS_ACCESS_KEY_ID"])
        if session is not None:
            own = hmac.new(secret.encode(), found["AWS_ACCESS_KEY_ID"].encode(), "sha256").hexdigest()
            session["SecretAccessKey"] = found["AWS_SECRET_ACCESS_KEY"] = own
        return found

    lambda_runtime.execution_credentials = lambda_svc.execution_credentials = salted


def save() -> None:
    """Write down what every service knows, as MiniStack does when it ends by itself."""
    ministack_app.save_all(ministack_app._build_persistence_save_dict())


def end_with_starter() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    if os.environ.get("PERSIST_STATE") == "1":
        # Whoever killed the starter did not mean the data.
        save()
    # The Lambda processes are in this group too, and would outlive a plain exit.
    os.killpg(os.getpgrp(), signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)


def know_what_a_put_says() -> None:
    """Give policies what S3 gives them of a PUT's headers: without `s3:if-none-match` and `s3:if-match`, a bucket that
    denies unconditional writes denies every write."""
    encryption = ["x-amz-server-side-encryption" + rest for rest in ("", "-aws-kms-key-id", "-customer-algorithm")]
    known = ["if-match", "if-none-match", "x-amz-storage-class", *encryption]
    original = iam_actions._s3_object_context

    def with_conditions(iam_action: str, query_params: dict[str, Any], path: str, headers: dict[str, str]) -> Any:
        context = original(iam_action, query_params, path, headers)
        if iam_action == "s3:PutObject":
            context |= {f"s3:{name}": headers[name] for name in known if headers.get(name)}
            # The beginning and the parts of an upload make no object yet; its end does.
            is_part = bool({"uploads", "partNumber"}.intersection(query_params))
            context["s3:ObjectCreationOperation"] = str(not is_part).lower()
        return context

    iam_actions._s3_object_context = with_conditions


def accept_metric_math() -> None:
    """Let CloudFormation create an alarm on a metric-math expression; it is stored, visible, and never evaluated."""
    original = provisioners._cw_metric_alarm_record

    def inert(name: str, props: dict[str, Any]) -> Any:
        if props.get("Metrics"):
            props = {key: value for key, value in props.items() if key != "Metrics"}
            props |= {"Namespace": "s3queue", "MetricName": "metric math is not evaluated on this machine"}
            props["TreatMissingData"] = "notBreaching"
        return original(name, props)

    provisioners._cw_metric_alarm_record = inert


def keep_failed_events(port: int, certificate: str | None) -> None:
    """Put the record of an invocation that failed for good into the bucket that the function names for it."""
    original, endpoint = lambda_svc._route_async_failure, f"{'https' if certificate else 'http'}://127.0.0.1:{port}"

    def route(target: str, function: str, event: Any, result: dict[str, Any]) -> None:
        bucket = target.removeprefix("arn:aws:s3:::")
        if bucket == target:
            original(target, function, event, result)
            return
        now = datetime.now(UTC)
        key = f"aws/lambda/async/{function}/{now:%Y/%m/%d}/{now:%Y-%m-%dT%H.%M.%S}-{uuid.uuid4()}"
        record = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": event}
        s3 = boto3.client("s3", endpoint_url=endpoint, verify=certificate, region_name=lambda_svc.get_region())
        s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(record | {"responsePayload": result.get("body")}))

    lambda_svc._route_async_failure = route


if __name__ == "__main__":
    main()
