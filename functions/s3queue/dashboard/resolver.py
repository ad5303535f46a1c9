"""Resolver: Powertools' resolver for function URLs, safe for threads. It answers errors, and refuses other sites."""

from __future__ import annotations

import html
import json
import logging
import re
import traceback
from base64 import b64decode
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal

from aws_lambda_powertools.event_handler import LambdaFunctionUrlResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError

from s3queue.errors import (
    AccessDenied,
    Conflict,
    CorruptState,
    InvalidRequest,
    MessageNotFound,
    MessageTooLarge,
    NotFound,
    QueueError,
    QueueFull,
    Unavailable,
)

_log = logging.getLogger(__name__)
# At DEBUG, Powertools logs the arguments of every route, including payloads.
logging.getLogger("aws_lambda_powertools.event_handler").setLevel(logging.INFO)
#: Lambda accepts 6 MB; larger messages can be PUT to S3 with a presigned URL or the CLI.
MOST_BYTES = 5 * 1024 * 1024
JSON = "application/json"
#: A page of another site can send a form, but it cannot send this header.
PROOF_HEADER = "x-s3queue"
#: On every answer of the API: what its caller may do. The page hides the buttons that a reader could only fail with.
ROLE_HEADER = "x-s3queue-role"
#: An operator looks and changes; a reader looks, and sees no payload.
Role = Literal["operator", "reader"]

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

#: What a person sees who opens an address at which there is nothing, or that asks for a key.
PROBLEM = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>s3queue</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="icon" href="/mark.svg" type="image/svg+xml"><link rel="stylesheet" href="/style.css">'
    '<link rel="stylesheet" href="/parts.css"></head><body><main><section class="verdict" data-health="unknown">'
    "<h1>{message}</h1>"
    '<p class="reason">{way_out}</p><p class="why">{status} · <a href="/">To the dashboard</a></p>'
    "</section></main></body></html>"
)

#: Error, status, way out; subclasses first.
_STATUS: tuple[tuple[type[QueueError], int, str], ...] = (
    (MessageTooLarge, 413, "Send less, raise max_message_size, or PUT the message to the bucket yourself."),
    (QueueFull, 429, "Wait until the queue has drained, or raise max_depth."),
    (InvalidRequest, 422, "Change the request as the message says."),
    (MessageNotFound, 404, "GET /messages and /dead of the queue list what it has."),
    (NotFound, 404, "GET /api/queues lists all queues."),
    (Conflict, 409, "Someone else got there first. Read the current state, then decide."),
    (AccessDenied, 403, "Grant the permission that the message names."),
    (Unavailable, 503, "S3 gave no clear answer. Try again: repeating a request is safe."),
    (CorruptState, 500, "Check the object that the message names, and correct or delete it."),
)


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, message: str, way_out: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": error,
            "message": message,
            "way_out": way_out,
            "fields": [],
            "suggestions": [],
        }
        self.headers = {name.replace("_", "-"): text for name, text in headers.items()}


def refusal_of(error: QueueError) -> Refused:
    """An error of the library as an answer, with the library's own text."""
    for kind, status, way_out in _STATUS:
        if isinstance(error, kind):
            later = {"retry_after": "2"} if status in (429, 503) else {}
            refused = Refused(status, type(error).__name__, str(error), way_out, **later)
            refused.body["suggestions"] = list(getattr(error, "suggestions", ()))
            return refused
    return Refused(500, type(error).__name__, str(error), "Check the log of the API.")


class Resolver(LambdaFunctionUrlResolver):
    """Keeps the request in a context variable.

    Powertools keeps it in a class attribute, which works for Lambda's one request at a time, but not with threads.
    """

    def __init__(self, role: Role = "operator") -> None:
        self.role: Role = role
        self._event: ContextVar[Any] = ContextVar("event")
        self._context: ContextVar[dict[str, Any]] = ContextVar("context")
        self._methods: list[tuple[re.Pattern[str], set[str]]] = []
        super().__init__(enable_validation=True, serializer=_serialize)
        self.use([_refuse_unknown])
        self.exception_handler([QueueError, RequestValidationError, NotFoundError, Exception])(self._answer)

    @property
    def current_event(self) -> Any:  # type: ignore[override]
        return self._event.get()

    @property
    def context(self) -> dict[str, Any]:
        found = self._context.get(None)
        if found is None:
            self._context.set(found := {})
        return found

    @context.setter
    def context(self, context: dict[str, Any]) -> None:
        self._context.set(context)

    def _to_proxy_event(self, event: dict[str, Any]) -> Any:
        found = super()._to_proxy_event(event)
        self._event.set(found)
        return found

    def route(self, rule: str, method: str = "GET", *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """As in Powertools. The methods are remembered too, so that a wrong method is a 405 and not a 404."""
        pattern = re.compile(re.sub(r"<\w+>", "[^/]+", rule))
        self._methods.append((pattern, {method} if isinstance(method, str) else set(method)))
        return super().route(rule, method, *arguments, **options)

    def answer(self, event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """The answer to a function-URL event; never raises, whatever the request or the store does."""
        http = event.get("requestContext", {}).get("http", {})
        try:
            self._check(event)
            answered: dict[str, Any] = self.resolve(event, context)
            if self.role == "reader" and str(event.get("rawPath", "/")).startswith("/api/"):
                answered = _without_payloads(answered)
        except Refused as refused:
            answered = _built(refused)
        except Exception as error:
            answered = _built(_broken(error))
        if answered["statusCode"] >= 400 and wants_page(event):
            answered = problem_page(answered)
        headers = {name: text for name, text in (answered.get("headers") or {}).items() if text}
        own = SECURITY_HEADERS | {ROLE_HEADER: self.role}
        answered["headers"] = own | {name.lower(): text for name, text in headers.items()}
        _log.info("%s %s -> %s", http.get("method"), http.get("path"), answered["statusCode"])
        return answered

    def _check(self, event: Mapping[str, Any]) -> None:
        headers = {name.lower(): str(text) for name, text in (event.get("headers") or {}).items()}
        method = event["requestContext"]["http"]["method"]
        path = str(event.get("rawPath", "/"))
        allowed = {verb for pattern, verbs in self._methods if pattern.fullmatch(path) for verb in verbs}
        if allowed and method not in allowed:
            verbs = ", ".join(sorted(allowed))
            raise Refused(405, "MethodNotAllowed", f"{path} does not allow {method}.", f"Use {verbs}.", allow=verbs)
        if path.startswith("/api/"):
            _check_site(method, headers)
            if method not in ("GET", "HEAD"):
                self.check_operator("change anything")
        if allowed and method in ("POST", "PUT", "PATCH"):
            _check_body(event, headers)

    def check_operator(self, to: str) -> None:
        """Raises Refused if only an operator may do this."""
        if self.role != "operator":
            way_out = "Ask an operator, or start the dashboard without --read-only."
            raise Refused(403, "ReadOnly", f"A reader may not {to}.", way_out)

    def _answer(self, error: Exception) -> Response[Any]:
        if isinstance(error, QueueError):
            error = refusal_of(error)
        elif isinstance(error, RequestValidationError):
            error = _named_fields(error)
        elif isinstance(error, NotFoundError):
            way_out = "GET /openapi.json describes every route."
            error = Refused(404, "NoSuchRoute", "There is nothing at this address.", way_out)
        elif not isinstance(error, Refused):
            # Otherwise Powertools would log it with its text.
            error = _broken(error)
        return Response(error.status, content_type=JSON, body=json.dumps(error.body), headers=error.headers)


def _refuse_unknown(app: Any, proceed: Any) -> Any:
    """A misspelt parameter must not be ignored: the answer would be to another question."""
    route = app.context["_route"]
    known = {field.alias for field in route.dependant.query_params}
    unknown = sorted(set(app.current_event.query_string_parameters) - known)
    if unknown and route.path.startswith("/api/"):
        refused = Refused(
            422, "InvalidRequest", f"Unknown parameter: {', '.join(unknown)}.", "/openapi.json lists all parameters."
        )
        refused.body["fields"] = [{"field": name, "message": "unknown parameter"} for name in unknown]
        raise refused
    return proceed(app)


def _check_site(method: str, headers: Mapping[str, str]) -> None:
    """Refuse a request that a page of another site makes the browser send with the operator's rights."""
    way_out = f"Send it from the dashboard itself, or from a program with the header `{PROOF_HEADER}: 1`."
    site = headers.get("sec-fetch-site", "none")
    origin = headers.get("origin")
    is_own = origin is None or re.sub(r"^https?://", "", origin) == headers.get("host")
    if site not in ("same-origin", "none") or not is_own:
        raise Refused(403, "CrossSite", "The request comes from another site.", way_out)
    if method not in ("GET", "HEAD") and headers.get(PROOF_HEADER) != "1":
        raise Refused(403, "CrossSite", f"The header `{PROOF_HEADER}: 1` is missing.", way_out)


def _check_body(event: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    body = event.get("body") or ""
    if len(body) > MOST_BYTES * (4 / 3 if event.get("isBase64Encoded") else 1):
        way_out = "PUT the message to the bucket yourself, with a presigned URL or `s3queue send`."
        raise Refused(413, "MessageTooLarge", f"A request can have at most {MOST_BYTES} bytes.", way_out)
    if not body:
        return
    kind = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON:
        raise Refused(415, "UnsupportedMediaType", f"{kind} is not supported.", f"Send {JSON}.")
    try:
        found = json.loads(b64decode(body) if event.get("isBase64Encoded") else body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(422, "InvalidRequest", "The body must be a JSON object.", "/openapi.json describes it.")


def _named_fields(error: RequestValidationError) -> Refused:
    fields = []
    for one in error.errors():
        parts = [str(part) for part in one["loc"]]
        fields.append({"field": ".".join(parts[1:]) or parts[0], "message": str(one["msg"])})
    named = ", ".join(dict.fromkeys(field["field"] for field in fields))
    refused = Refused(422, "InvalidRequest", f"Wrong: {named}.", "Correct the fields; /openapi.json describes them.")
    refused.body["fields"] = fields
    return refused


def _broken(error: Exception) -> Refused:
    """A bug. The log gets its frames, but not its text, which may quote a message."""
    _log.error("request failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return Refused(500, "InternalError", "The API failed.", "Check its log, and try again.")


def _without_payloads(answered: dict[str, Any]) -> dict[str, Any]:
    """The same answer for a reader: what every model calls `body`, of the answer or of an entry in it, is null."""
    is_coded = answered.get("isBase64Encoded", False)
    found = json.loads(b64decode(answered["body"]) if is_coded else answered["body"])
    lists = [value for value in found.values() if isinstance(value, list)] if isinstance(found, dict) else []
    for entry in [found, *(entry for entries in lists for entry in entries)]:
        if isinstance(entry, dict) and "body" in entry:
            entry["body"] = None
    return answered | {"body": _serialize(found), "isBase64Encoded": False}


def wants_page(event: Mapping[str, Any]) -> bool:
    """Whether a person typed this address: the API answers programs, and the page itself, with JSON."""
    accepted = next((str(text) for name, text in (event.get("headers") or {}).items() if name.lower() == "accept"), "")
    return "text/html" in accepted and not str(event.get("rawPath", "/")).startswith("/api/")


def problem_page(answered: dict[str, Any]) -> dict[str, Any]:
    """The same answer for people; with the page's own style, since no other may be used here."""
    said = json.loads(answered.get("body") or "{}")
    texts = {name: html.escape(str(said.get(name) or "")) for name in ("message", "way_out")}
    body = PROBLEM.format(status=answered["statusCode"], **texts)
    kept = {name: text for name, text in answered["headers"].items() if name.lower() != "content-type"}
    headers = {"content-type": "text/html; charset=utf-8"} | kept
    return answered | {"headers": headers, "body": body, "isBase64Encoded": False}


def _built(refused: Refused) -> dict[str, Any]:
    headers = {"content-type": JSON} | refused.headers
    return {
        "statusCode": refused.status,
        "headers": headers,
        "body": json.dumps(refused.body),
        "isBase64Encoded": False,
        "cookies": [],
    }


def _serialize(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True, default=str)
