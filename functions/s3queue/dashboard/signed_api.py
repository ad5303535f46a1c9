"""SignedApi: a deployed API on this machine. The page is served from here; requests are signed and passed on.

A browser cannot sign for a function URL, and must not have the credentials that could. So it asks this server, which
checks what the local dashboard checks, and signs with the operator's own credentials, read again for each request: they
may expire. Of a request, only its method, its parameters and its body leave this machine: neither key nor cookie does.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from botocore.utils import get_environ_proxies

from s3queue.connect import split_url, without_secret
from s3queue.errors import AccessDenied, InvalidRequest, QueueError, Unavailable
from s3queue.settings import aws_region

from .pages import register_pages
from .resolver import JSON, PROOF_HEADER, ROLE_HEADER, Refused, Resolver, Role, refusal_of

#: What AWS calls the service behind a function URL.
SERVICE = "lambda"
#: Seconds to connect, and to wait for an answer: the function itself ends after sixty.
CONNECT_SECONDS, READ_SECONDS = 5, 70
#: Plain HTTP would show the request, and a session's token, to everyone on the way. An emulator is not far away.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Of the API's answer; the rest is this server's own.
PASSED_ON = ("content-type", "retry-after", "allow", ROLE_HEADER)
#: Every route that is passed on; dots or a percent sign would be signed in one spelling and sent in another. The one
#: dot in the id of a flow within another stays as it is.
ROUTE = re.compile(r"/api/[A-Za-z0-9/_-]+|/api/flows/[a-z0-9-]+\.[0-9]{4}(?:/cancel)?|/openapi\.json")
_REGION = re.compile(r"\.lambda-url\.([a-z0-9-]+)\.")
_FALSE = ("0", "f", "false", "n", "no", "off")


class SignedApi(Resolver):
    """The deployed API at this address, for whoever started this server.

    For a reader it changes nothing and shows no payload, whatever the address allows.

    Raises:
        InvalidRequest: not the address of an API, or no region. AccessDenied: no credentials.
    """

    def __init__(
        self, url: str, *, session: Session | None = None, region: str | None = None, role: Role = "operator"
    ) -> None:
        super().__init__(role)
        register_pages(self)
        self.url = _checked(url)
        session = session or Session()
        found = _REGION.search(urlsplit(self.url).netloc)
        self._region = found[1] if found else region or aws_region() or session.get_config_variable("region")
        if not self._region:
            raise InvalidRequest(f"{url} names no region; give --region, or set AWS_REGION")
        credentials = session.get_credentials()
        if credentials is None:
            raise AccessDenied("no AWS credentials; set AWS_PROFILE, or log in with `aws sso login`")
        self._credentials = credentials
        self._http = URLLib3Session(
            verify=session.get_config_variable("ca_bundle") or True,
            proxies=get_environ_proxies(self.url),
            timeout=(CONNECT_SECONDS, READ_SECONDS),  # type: ignore[arg-type]  # the stub knows one number only
            max_pool_connections=32,
        )

    def check(self) -> Role:
        """Ask the API for a queue; what this operator may do there.

        Raises:
            QueueError: it does not let this operator in, or does not answer, with the way out.
        """
        answer = self._pass_on("GET", "/api/queues", "limit=1")
        if answer["statusCode"] != 200:
            raise Unavailable(f"{self.url}: {answer['statusCode']}{_message(b64decode(answer['body']))}")
        allowed: Role = "reader" if "reader" in (answer["headers"].get(ROLE_HEADER), self.role) else "operator"
        self.role = allowed
        return allowed

    def resolve(self, event: Any, context: Any = None) -> dict[str, Any]:
        """The page's own files from this package; everything else from the deployed API."""
        if not ROUTE.fullmatch(str(event["rawPath"])):
            found: dict[str, Any] = super().resolve(event, context)
            return found
        query = str(event.get("rawQueryString") or "")
        self._check_payload(str(event["rawPath"]), query)
        given = event.get("body") or ""
        body = b64decode(given) if event.get("isBase64Encoded") else given.encode()
        method = event["requestContext"]["http"]["method"]
        try:
            answer = self._pass_on(method, event["rawPath"], query, body, event["headers"].get("content-type", JSON))
        except Unavailable as error:
            way_out = "Try again." if method == "GET" else "It may have been done: look first, then try again."
            raise Refused(503, type(error).__name__, str(error), way_out, retry_after="2") from error
        except QueueError as error:
            raise refusal_of(error) from error
        if self.role == "reader":
            answer["headers"][ROLE_HEADER] = self.role
        return answer

    def _check_payload(self, path: str, query: str) -> None:
        """Said here, as the API says it to its readers: an answer without the payload would look like an empty one."""
        asked = parse_qsl(query)
        if any(name == "body" and value.lower() not in _FALSE for name, value in asked):
            self.check_operator("see payloads")
        if path.endswith("/search") and any(name == "field" for name, _ in asked):
            self.check_operator("search payloads")

    def _pass_on(
        self, method: str, path: str, query: str = "", body: bytes = b"", content_type: str = JSON
    ) -> dict[str, Any]:
        # Spelt as AWS spells it before it checks the signature; a browser writes a space as `+`.
        asked = urlencode(parse_qsl(query, keep_blank_values=True), quote_via=quote, safe="-_.~")
        headers = {PROOF_HEADER: "1", **({"content-type": content_type} if body else {})}
        url = f"{self.url}{path}{'?' if asked else ''}{asked}"
        request = AWSRequest(method=method, url=url, headers=headers, data=body)
        self._sign(request)
        try:
            answer = self._http.send(request.prepare())
        except BotoCoreError as error:
            raise Unavailable(f"{self.url} did not answer: {error}") from error
        given = {name.lower(): text for name, text in answer.headers.items()}
        if given.get("content-length", str(len(answer.content))) != str(len(answer.content)):
            raise Unavailable(f"the answer of {self.url} was cut off")
        if ROLE_HEADER not in given or given.get("content-type", "").partition(";")[0] != JSON:
            raise self._refused(answer)
        return {
            "statusCode": answer.status_code,
            "headers": {name: given[name] for name in PASSED_ON if name in given},
            "body": b64encode(answer.content).decode(),
            "isBase64Encoded": True,
        }

    def _sign(self, request: AWSRequest) -> None:
        try:
            credentials = self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise AccessDenied(f"no AWS credentials: {error}; log in again, say with `aws sso login`") from error
        SigV4Auth(credentials, SERVICE, self._region).add_auth(request)

    def _refused(self, answer: AWSResponse) -> QueueError:
        """An answer that the API did not give: of AWS in front of it, or of somebody else."""
        status, said = answer.status_code, f"{self.url}: {answer.status_code}{_message(answer.content)}"
        if status in (401, 403):
            way_out = "attach the stack's output OperatorPolicy (for ReaderUrl: ReaderPolicy) to whoever you are"
            return AccessDenied(f"{said}; {way_out}, and check AWS_PROFILE, region {self._region} and the clock")
        if status == 429 or status >= 500:
            return Unavailable(f"{said}")
        return InvalidRequest(f"{said}; this is not an s3queue stack's output Url or ReaderUrl")


def _checked(url: str) -> str:
    """Without the slash at the end."""
    parts = split_url(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not is_safe or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidRequest(
            f"{without_secret(url)!r} is not an API's address; the stack's outputs Url and ReaderUrl are: https://…"
        )
    return url.rstrip("/")


def _message(content: bytes) -> str:
    """What AWS says, in whichever spelling; empty if it is not JSON."""
    try:
        found = json.loads(content)
    except ValueError:
        return ""
    said = found.get("Message") or found.get("message") if isinstance(found, Mapping) else None
    return f" {said}" if isinstance(said, str) else ""
