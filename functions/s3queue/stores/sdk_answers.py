"""Answers as boto3 tells them, as the store's own: what is missing in one, or half there, makes it unknown."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from s3queue.errors import AccessDenied, InvalidRequest, QueueError, Unavailable
from s3queue.store import Object, ObjectInfo, Page, Written, cursor_after

from .bodies import ReceivedBody
from .connections import WHOLE_BYTES
from .s3_errors import LOG_IN
from .wire import http_date, unquoted, whole_etag, whole_seconds


def written_in(answer: Any, part: str = "") -> Written:
    found = answer.get(part, {}) if part else answer
    return Written(whole_etag(found.get("ETag")), date_in(answer))


def opened_in(key: str, answer: Any) -> Object:
    """Small bodies are read at once, so that a broken connection is repaired by asking again."""
    described = described_in(key, answer)
    body = ReceivedBody(answer["Body"], key)
    if described["size"] > WHOLE_BYTES:
        return Object(**described, stream=io.BufferedReader(body))
    with body:
        return Object(**described, stream=io.BytesIO(body.readall()))


def page_in(answer: Any) -> Page:
    if "Name" not in answer:
        raise Unavailable("the answer has no body, and must not look like an empty bucket")
    at = date_in(answer)
    objects = tuple(
        ObjectInfo(
            key=entry["Key"],
            etag=unquoted(entry["ETag"]),
            size=entry["Size"],
            modified_at=whole_seconds(entry["LastModified"]),
            at=at,
        )
        for entry in answer.get("Contents", ())
    )
    prefixes = tuple(entry["Prefix"] for entry in answer.get("CommonPrefixes", ()))
    return Page(objects, prefixes, cursor_after(objects, prefixes) if answer.get("IsTruncated") else None, at)


def described_in(key: str, answer: Any) -> dict[str, Any]:
    """What an answer says about its object.

    If a connection ends within a head, `http.client` takes that for the head's end: what is missing, or is half there,
    makes the answer unknown.
    """
    if "ContentLength" not in answer:
        raise Unavailable(f"the answer about {key} has no Content-Length header: it was cut off")
    return {
        "key": key,
        "etag": whole_etag(answer.get("ETag")),
        "size": answer["ContentLength"],
        # Not boto3's own: it reads half a date, too.
        "modified_at": http_date(answer["ResponseMetadata"]["HTTPHeaders"].get("last-modified", "")),
        "at": date_in(answer),
        # S3 keeps names in lower case; some servers and proxies change the case.
        "metadata": {name.lower(): value for name, value in answer.get("Metadata", {}).items()},
        "content_type": answer.get("ContentType", ""),
    }


def date_in(answer: Any) -> datetime:
    return http_date(answer["ResponseMetadata"]["HTTPHeaders"].get("date", ""))


def failure_of(error: BotoCoreError, verb: str, bucket: str, key: str) -> QueueError:
    """What to raise when there was no answer."""
    where = f"{verb.upper()} s3://{bucket}/{key}"
    if isinstance(error, ParamValidationError):
        return InvalidRequest(f"{where}: {error}")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, SSOError, TokenRetrievalError)):
        return AccessDenied(f"{where}: {error}: {LOG_IN}")
    return Unavailable(f"{where}: {error}")
