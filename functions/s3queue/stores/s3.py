"""S3Store: S3 through boto3. s3_errors.py says what error answers mean; 409s and half answers are tried again here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from s3queue.clock import Chance, Clock, RandomChance, SystemClock
from s3queue.errors import Conflict, Contended, InvalidRequest, Unavailable
from s3queue.settings import aws_region
from s3queue.store import Object, ObjectInfo, Page, Written

from .bodies import RestOfStream
from .many import BulkDelete, left_unknown
from .presigned import PresignedUrls
from .s3_errors import COPY_BYTES, Condition, condition_of, is_throttled, is_unknown, refusal, says_nothing_there
from .sdk_answers import date_in, described_in, failure_of, opened_in, page_in, written_in
from .wire import check_key, quoted

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")
#: How often a request is tried that meets other writers (409), or half an answer.
TRIES = 5
#: Before a body of at least this size, the server is asked (`Expect: 100-continue`), so that a refused one is not sent.
#: Smaller ones save the round trip.
ASK_FIRST_BYTES = 1024 * 1024


def client(endpoint_url: str | None = None, region: str | None = None, connections: int = 32, **keys: Any) -> S3Client:
    """A client for the store: standard retries, signatures that keep If-None-Match, short time-outs."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 4},
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=10,
        max_pool_connections=connections,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint_url else "auto"},
    )
    return boto3.client("s3", endpoint_url=endpoint_url, region_name=region or aws_region(), config=config, **keys)


class S3Store(PresignedUrls):
    """An ObjectStore over one S3 bucket; safe for threads, as boto3's clients are."""

    def __init__(
        self, bucket: str, *, client: S3Client, clock: Clock | None = None, chance: Chance | None = None
    ) -> None:
        self.url = f"s3://{bucket}"
        self._bucket = bucket
        self._client = client
        client.meta.events.register("before-send.s3.PutObject", _ask_first_if_large, unique_id="s3queue-ask-first")
        client.meta.events.register_first("needs-retry.s3", _note_answer, unique_id="s3queue-note-answer")
        client.meta.events.register("before-send.s3", _refuse_to_repeat, unique_id="s3queue-once")
        self._clock = clock or SystemClock()
        self._chance = chance or RandomChance()
        self._bulk = BulkDelete(client.meta.endpoint_url)

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
        conditions: dict[str, Any] = {}
        if if_match is not None:
            conditions["IfMatch"] = quoted(if_match)
        if if_absent:
            conditions["IfNoneMatch"] = "*"
        sent: Any = body if isinstance(body, bytes) else RestOfStream(body)

        def send() -> Any:
            if not isinstance(sent, bytes):
                sent.seek(0)
            return self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=sent,
                Metadata=dict(metadata or {}),
                ContentType=content_type,
                **conditions,
            )

        condition = condition_of(if_match, if_absent)
        written: Written = self._request("put", key, send, written_in, condition=condition, once=once)
        return written

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        conditions: dict[str, Any] = {} if if_match is None else {"IfMatch": quoted(if_match)}

        def send() -> Any:
            return self._client.get_object(Bucket=self._bucket, Key=key, **conditions)

        found: Object | None = self._request(
            "get", key, send, partial(opened_in, key), condition=condition_of(if_match)
        )
        return found

    def head(self, key: str) -> ObjectInfo | None:
        def send() -> Any:
            return self._client.head_object(Bucket=self._bucket, Key=key)

        found: ObjectInfo | None = self._request(
            "head", key, send, lambda answer: ObjectInfo(**described_in(key, answer))
        )
        return found

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        conditions: dict[str, Any] = {} if if_match is None else {"IfMatch": quoted(if_match)}

        def send() -> Any:
            return self._client.delete_object(Bucket=self._bucket, Key=key, **conditions)

        at = self._request("delete", key, send, date_in, condition=condition_of(if_match), once=True)
        return at or self.list(key, limit=1).at

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        return self._bulk.delete(self, self._send_many, seen, self._chance.token)

    def _send_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        # Not `Quiet`: then half an answer would say that everything was deleted.
        objects: Any = [{"Key": key, "ETag": quoted(etag)} for key, etag in seen.items()]

        def send() -> Any:
            return self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects})

        def understand(answer: Any) -> frozenset[str]:
            deleted = [entry["Key"] for entry in answer.get("Deleted", ())]
            return left_unknown(seen, deleted, answer.get("Errors", ()), self._bucket)

        unknown: frozenset[str] | None = self._request("delete", next(iter(seen)), send, understand, once=True)
        return frozenset(seen) if unknown is None else unknown

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
        options: dict[str, Any] = {} if if_match is None else {"CopySourceIfMatch": quoted(if_match)}
        if metadata is not None:
            # Tags are not copied: that needs permissions that nothing else here needs.
            options |= {"MetadataDirective": "REPLACE", "Metadata": dict(metadata), "TaggingDirective": "REPLACE"}
            options |= {"ContentType": content_type} if content_type else {}
        origin: Any = {"Bucket": self._bucket, "Key": check_key(source)}
        # Before an InvalidRequest means that it is too large.
        check_key(target)

        def send() -> Any:
            into: dict[str, Any] = {"Bucket": self._bucket, "Key": target} | ({"IfNoneMatch": "*"} if if_absent else {})
            return self._client.copy_object(CopySource=origin, **into, **options)

        read, condition = partial(written_in, part="CopyObjectResult"), condition_of(if_match, if_absent)
        try:
            copied: Written | None = self._request("copy", target, send, read, condition=condition, once=True)
            return copied
        except InvalidRequest:
            info = self.head(source)
            if info is None or info.size <= COPY_BYTES:
                raise
            if if_absent and self.head(target):
                raise Conflict(f"COPY {source}: {target} exists already") from None

        def send_parts() -> Any:
            self._client.copy(origin, self._bucket, target, ExtraArgs=options, Config=TransferConfig(use_threads=False))
            return self._client.head_object(Bucket=self._bucket, Key=target)

        # Parts may be sent again, each of them, but not the whole: a 409 does not say that it was not carried out.
        in_parts: Written | None = self._request("copy", target, send_parts, written_in, condition=condition, tries=1)
        return in_parts

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        options: dict[str, Any] = ({"StartAfter": check_key(after)} if after else {}) | (
            {"Delimiter": delimiter} if delimiter else {}
        )

        def send() -> Any:
            return self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=limit, **options)

        page: Page = self._request("list", prefix, send, page_in)
        return page

    def _request(
        self,
        verb: str,
        key: str,
        send: Callable[[], Any],
        understand: Callable[[Any], T],
        *,
        condition: Condition = "",
        once: bool = False,
        tries: int | None = None,
    ) -> Any:
        """One request, and what `understand` makes of its answer. None: there is no such object.

        A 409, and half an answer, which `understand` raises Unavailable for, are asked for again, with a growing pause;
        boto3 itself repeats after no answer. With `once`, only again if it surely was not carried out, which a 409 does
        not say.
        """
        what = f"{verb.upper()} {self.url}/{check_key(key)}"
        retried = False
        problem: Unavailable | None = None
        tries = TRIES if tries is None else tries
        for number in range(1, tries + 1):
            try:
                _sending.once, _sending.may_be_done, _sending.is_sent = once, False, False
                return understand(send())
            except _Repetition as error:
                raise Unavailable(f"{what}: no answer, or one that does not say") from error
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                code = error.response.get("Error", {}).get("Code", "")
                said = error.response.get("Error", {}).get("Message", "")
                # Kept once it is true: the SDK may have repeated a write that had succeeded, before it met a 409.
                retried = retried or error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                # A copy in parts asks for its source, and for what became of it, by HEAD.
                asked = "head" if error.operation_name == "HeadObject" else verb
                if says_nothing_there(status, code, asked, condition):
                    return None
                if status != 409:
                    raise refusal(
                        *(status, code, said, verb, self._bucket, key),
                        retried=retried,
                        condition=condition,
                        endpoint=self._client.meta.endpoint_url,
                    ) from error
                problem = Contended(f"{what}: met other writers (409); try again")
            except BotoCoreError as error:
                raise failure_of(error, verb, self._bucket, key) from error
            except Unavailable as error:
                problem = Unavailable(f"{what}: {error}")
            except ValueError as error:
                if not _sending.is_sent:
                    raise
                # boto3 could not read half a header.
                problem = Unavailable(f"{what}: unreadable answer: {error}")
            finally:
                _sending.once = False
            # What comes after this may be the answer to a write that had succeeded: also after a 409, if something
            # between us and S3 repeated the write.
            if once:
                break
            retried = True
            if number < tries:
                self._clock.sleep(self._chance.uniform(0.01, 0.05) * 2**number)
        assert problem
        raise problem


class _Repetition(Exception):
    """boto3 was about to send a request again that may be sent only once."""


class _Sending(threading.local):
    """This thread's present request: whether it may be sent only once, may have been carried out, and was sent."""

    once = False
    may_be_done = False
    is_sent = False


_sending = _Sending()


def _note_answer(response: Any, caught_exception: Exception | None, **_: Any) -> None:
    """Before boto3 decides whether to repeat. A redirect or a throttled request was surely not carried out."""
    status, code = 0, ""
    if response is not None:
        status, code = response[0].status_code, response[1].get("Error", {}).get("Code", "")
    _sending.may_be_done = caught_exception is not None or (is_unknown(status, code) and not is_throttled(code))


def _refuse_to_repeat(request: Any, **_: Any) -> None:
    if _sending.once and _sending.may_be_done:
        raise _Repetition
    _sending.is_sent = True


def _ask_first_if_large(request: Any, **_: Any) -> None:
    """boto3 asks (`Expect: 100-continue`) before every body, and some servers never answer if the body is empty."""
    if int(request.headers.get("Content-Length", ASK_FIRST_BYTES)) < ASK_FIRST_BYTES and "Expect" in request.headers:
        del request.headers["Expect"]
