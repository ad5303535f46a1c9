"""DirectStore: S3 without an SDK. It sends the same requests as boto3, with a fraction of its CPU and start time.

boto3 is used for what is rare: presigned URLs, copies of more than 5 GB, and credentials, regions or endpoints that are
not in the environment. For buckets with accelerated addresses, use the store `boto3`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus

from s3queue.clock import Chance, Clock, RandomChance, SystemClock
from s3queue.errors import Contended, InvalidRequest, Unavailable
from s3queue.store import Object, ObjectInfo, Page, Written, cursor_after

from .aws_environment import find_credentials, find_place
from .connections import Answer, Broken, Connections
from .many import BulkDelete, left_unknown, request_body
from .place import Place
from .s3_errors import COPY_BYTES, Condition, condition_of, is_throttled, is_unknown, refusal, says_nothing_there
from .signature import Credentials, Headers
from .wire import check_key, http_date, listed_date, quoted, unquoted, whole_etag

if TYPE_CHECKING:
    from xml.etree import ElementTree

    from .s3 import S3Store

_log = logging.getLogger(__name__)
#: How often a request is tried whose answer leaves open what happened, and one that met other writers (409).
TRIES = 4
CONTENDED_TRIES = 5
_META = "x-amz-meta-"


class DirectStore:
    """An ObjectStore over one S3 bucket; safe for threads."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        tries: int = TRIES,
        clock: Clock | None = None,
        chance: Chance | None = None,
        keys: tuple[str, str] | None = None,
    ) -> None:
        self.url = f"s3://{bucket}"
        self._bucket = bucket
        plain = bucket.replace("-", "")
        if not (bucket.isascii() and plain.replace(".", "").replace("_", "").isalnum()):
            raise InvalidRequest(f"{bucket!r} is not a valid bucket name")
        self._asked = endpoint_url, region
        self._clock = clock or SystemClock()
        self._keys = keys
        self._credentials = (lambda: Credentials(*keys)) if keys else find_credentials()
        place = Place(bucket, *find_place(endpoint_url, region))
        self._go_to(place)
        self._tries = tries
        self._chance = chance or RandomChance()
        self._bulk = BulkDelete(place.address)

    def _go_to(self, place: Place) -> None:
        connections = Connections(place.host, region=place.region, credentials=self._credentials, clock=self._clock)
        # In one step: a request of another thread takes both, or neither.
        self._at = place, connections

    def _follow(self, answer: Answer, place: Place) -> bool:
        """Whether S3 says that the bucket is elsewhere than at this place: that is where requests go from now on."""
        named = place.named_by(answer)
        if named is None:
            return False
        # Another thread may have been told the same, and have gone there.
        if named != self._at[0]:
            _log.info("bucket is in another region, following: %s: %s", self._bucket, named.region)
            self._asked = self._asked[0], named.region
            self._go_to(named)
        return True

    def put(
        self,
        key: str,
        body: bytes | IO[bytes],
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/octet-stream",
        once: bool = False,
    ) -> Written:
        headers = [("content-type", content_type), *_described(metadata)]
        if if_match is not None:
            headers.append(("if-match", quoted(if_match)))
        if if_absent:
            headers.append(("if-none-match", "*"))
        answer = self._request("put", "PUT", key, headers, body, condition=condition_of(if_match, if_absent), once=once)
        return Written(_etag(answer), _date(answer))

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        headers = [] if if_match is None else [("if-match", quoted(if_match))]
        answer = self._request("get", "GET", key, headers, streams=True, condition=condition_of(if_match))
        if answer.status == 404:
            return None
        return Object(**_description(key, answer), stream=answer.stream or io.BytesIO(answer.body))

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._request("head", "HEAD", key, [])
        return None if answer.status == 404 else ObjectInfo(**_description(key, answer))

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        headers = [] if if_match is None else [("if-match", quoted(if_match))]
        answer = self._request("delete", "DELETE", key, headers, condition=condition_of(if_match), once=True)
        return _date(answer)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        return self._bulk.delete(self, self._send_many, seen, self._chance.token)

    def _send_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        body = request_body(seen)
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = [("content-md5", digest), ("content-type", "application/xml")]
        answer = self._request("delete", "POST", next(iter(seen)), headers, body, query="delete=", once=True)
        entries = [(_name(child), _fields(child)) for child in _parsed(answer, "DeleteResult")]
        deleted = [fields.get("Key", "") for name, fields in entries if name == "Deleted"]
        errors = [fields for name, fields in entries if name == "Error"]
        return left_unknown(seen, deleted, errors, self._bucket)

    def copy(
        self,
        source: str,
        target: str,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> Written | None:
        headers = [("x-amz-copy-source", quote(f"{self._bucket}/{check_key(source)}", safe="/~"))]
        # Before an InvalidRequest means that it is too large.
        check_key(target)
        if if_match is not None:
            headers.append(("x-amz-copy-source-if-match", quoted(if_match)))
        if if_absent:
            headers.append(("if-none-match", "*"))
        if metadata is not None:
            # Tags are not copied: that needs permissions that nothing else here needs.
            headers += [("x-amz-metadata-directive", "REPLACE"), ("x-amz-tagging-directive", "REPLACE")]
            headers += [*_described(metadata), *([("content-type", content_type)] if content_type else [])]
        try:
            answer = self._request(
                "copy", "PUT", target, headers, condition=condition_of(if_match, if_absent), once=True
            )
        except InvalidRequest:
            info = self.head(source)
            if info is None or info.size <= COPY_BYTES:
                raise
            options: dict[str, Any] = {"metadata": metadata, "content_type": content_type}
            return self._boto3.copy(source, target, if_match=if_match, if_absent=if_absent, **options)
        if answer.status == 404:
            return None
        return Written(whole_etag(_fields(_parsed(answer, "CopyObjectResult")).get("ETag")), _date(answer))

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        asked = {"delimiter": delimiter, "prefix": check_key(prefix), "start-after": check_key(after)} | {
            "encoding-type": "url",
            "list-type": "2",
            "max-keys": str(limit),
        }
        # In the order of their names, as the signature requires.
        query = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(asked.items()) if value)
        answer = self._request("list", "GET", prefix, [], query=query)
        return _page(_parsed(answer, "ListBucketResult"), _date(answer))

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        return self._boto3.presign_put(key, seconds=seconds, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: int) -> str:
        return self._boto3.presign_get(key, seconds=seconds)

    @cached_property
    def _boto3(self) -> S3Store:
        from .s3 import S3Store, client

        named: dict[str, Any] = dict(
            zip(("aws_access_key_id", "aws_secret_access_key"), self._keys or (), strict=False)
        )
        return S3Store(self._bucket, client=client(*self._asked, **named))

    def _request(
        self,
        verb: str,
        method: str,
        key: str,
        headers: Headers,
        body: bytes | IO[bytes] = b"",
        *,
        query: str = "",
        streams: bool = False,
        condition: Condition = "",
        once: bool = False,
    ) -> Answer:
        """One request, again while it is unknown what became of it, or while it meets other writers (409).

        The answer is a success, or says that there is no such object (404).

        With `once`, only again if it surely was not carried out, which a 409 does not say.
        """
        what = f"{verb.upper()} {self.url}/{key}"
        if not (query or key):
            raise InvalidRequest(f"{what}: the key is empty")
        check_key(key)
        start = 0 if isinstance(body, bytes) else body.tell()
        unknown = contended = 0
        has_moved = False
        while True:
            if not isinstance(body, bytes):
                body.seek(start)
            place, connections = self._at
            path = (place.root.rstrip("/") or "/") if query else place.root + quote(key, safe="/~")
            try:
                answer = connections.send(method, path, headers, body, query=query, streams=streams, what=what)
                status, (code, said) = answer.status, _refused(verb, answer)
                if not code:
                    return answer
                if not has_moved and self._follow(answer, place):
                    has_moved = True
                    continue
                # After a 409, too: something between us and S3 may have repeated a write that had succeeded.
                problem = refusal(
                    *(status, code, said, verb, self._bucket, key),
                    retried=unknown + contended > 0,
                    condition=condition,
                    endpoint=place.address,
                )
            except Broken as error:
                status, code, problem = 500, "", error
            may_be_done = not is_throttled(code) and getattr(problem, "was_sent", True)
            if status == 409:
                contended += 1
                # It may be the answer to a repetition, by something on the way, of a write that had succeeded.
                if once or contended == CONTENDED_TRIES:
                    raise Contended(f"{what}: met other writers (409); try again")
                self._clock.sleep(self._chance.uniform(0.01, 0.05) * 2**contended)
            elif is_unknown(status, code):
                unknown += 1
                if unknown >= self._tries or (once and may_be_done):
                    raise problem
                self._clock.sleep(self._chance.uniform(0, 1) * 2 ** (unknown - 1))
            elif says_nothing_there(status, code, verb, condition):
                return answer
            else:
                raise problem


def _refused(verb: str, answer: Answer) -> tuple[str, str]:
    """Code and text of an error answer; an empty code means success."""
    # A copy that fails half-way has already answered 200.
    if answer.status < 300 and not (verb == "copy" and b"<Error" in answer.body):
        return "", ""
    try:
        fields = _fields(_parsed(answer))
    except Unavailable:
        fields = {}  # the answer to a HEAD has no body, and a proxy's answer is not XML
    if answer.status < 300:
        answer.status = 500
    return fields.get("Code", str(answer.status)), fields.get("Message", "")


def _page(root: ElementTree.Element, at: datetime) -> Page:
    names = _Names()
    top = {names[child.tag]: child.text or "" for child in root}
    decoded: Callable[[str], str] = unquote_plus if top.get("EncodingType") == "url" else str
    objects, prefixes = [], []
    for child in root:
        name = names[child.tag]
        if name == "Contents":
            # Up to a thousand times: a sweep of a long queue spends most of its CPU time here.
            entry = {names[field.tag]: field.text or "" for field in child}
            objects.append(
                ObjectInfo(
                    key=decoded(entry["Key"]),
                    etag=unquoted(entry["ETag"]),
                    size=int(entry["Size"]),
                    modified_at=listed_date(entry["LastModified"]),
                    at=at,
                )
            )
        elif name == "CommonPrefixes":
            prefixes.append(decoded(_fields(child)["Prefix"]))
    goes_on = top.get("IsTruncated") == "true"
    return Page(tuple(objects), tuple(prefixes), cursor_after(objects, prefixes) if goes_on else None, at)


class _Names(dict[str, str]):
    """A tag → its name, as `_name`; computed once for each tag."""

    def __missing__(self, tag: str) -> str:
        name = self[tag] = tag.rpartition("}")[2]
        return name


def _parsed(answer: Answer, expected: str = "Error") -> ElementTree.Element:
    # A worker that events invoke lists nothing and meets few errors.
    from xml.etree import ElementTree

    try:
        # During a long copy, the server sends blanks until it is done.
        root = ElementTree.fromstring(answer.body.lstrip())
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unavailable(f"the server's answer ({answer.status}) is not XML: {error}") from error
    if _name(root) != expected:
        # For example a proxy's own page, which must not look like an empty bucket.
        raise Unavailable(f"the server's answer ({answer.status}) is {_name(root)!r}, not {expected}")
    return root


def _fields(element: ElementTree.Element) -> dict[str, str]:
    return {_name(child): child.text or "" for child in element}


def _name(element: ElementTree.Element) -> str:
    """The tag without its namespace, which some servers leave out."""
    return element.tag.rpartition("}")[2]


def _described(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    if not metadata:
        return []
    for name in metadata:
        if not (name.isascii() and name.isprintable()) or ":" in name or " " in name:
            raise InvalidRequest(f"metadata name {name!r} cannot be part of a header; use letters, digits and '-'")
    return [(_META + name.lower(), value) for name, value in metadata.items()]


def _description(key: str, answer: Answer) -> dict[str, Any]:
    headers = answer.headers
    return {
        "key": key,
        "etag": _etag(answer),
        "size": int(headers.get("content-length", len(answer.body))),
        "modified_at": http_date(headers.get("last-modified", "")),
        "at": _date(answer),
        "metadata": {name[len(_META) :]: value for name, value in headers.items() if name.startswith(_META)},
        "content_type": headers.get("content-type", ""),
    }


def _etag(answer: Answer) -> str:
    return whole_etag(answer.headers.get("etag"))


def _date(answer: Answer) -> datetime:
    return http_date(answer.headers.get("date", ""))
