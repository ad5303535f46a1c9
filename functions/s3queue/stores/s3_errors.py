"""What an error answer of S3 means; the only file that knows S3's error codes.

412, and 404 NoSuchKey to an If-Match: the condition did not hold. 5xx and time-outs: the result is unknown. Everything
else says what to change, and so does every 404 that does not say that there is no such object.
"""

from __future__ import annotations

from typing import Literal

from s3queue.errors import (
    AccessDenied,
    Conflict,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NotFound,
    QueueError,
    Unavailable,
    Unreadable,
)
from s3queue.keys import MAX_KEY_BYTES

#: The permission that each request needs, for the text of an AccessDenied.
_PERMISSIONS = {"put": "s3:PutObject", "get": "s3:GetObject", "head": "s3:GetObject", "delete": "s3:DeleteObject"}
#: What a request asked for of the object that it writes, deletes or reads: nothing, that there is none, or an ETag.
Condition = Literal["", "absent", "match"]
#: How S3 says that there is no object. What answers in its place (another web server, a gateway, an access point that
#: is gone) says something else.
NO_SUCH_KEY = "NoSuchKey"
#: CopyObject accepts 5 GB; a larger object is copied in parts.
COPY_BYTES = 5 * 1000**3
_UNKNOWN_CODES = {
    "RequestTimeout",
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "Throttling",
    # Of KMS, whose codes S3 passes on with `KMS.` before them: nothing is wrong with key or object.
    "ThrottlingException",
    "DependencyTimeoutException",
    "KMSInternalException",
    "RequestTimeTooSkewed",
    "TemporaryRedirect",
    # Of a copy in parts: completed by a try whose answer was lost, or given up by someone else.
    "NoSuchUpload",
}
#: Codes that mean that the credentials themselves are refused: a permission would not help.
_CREDENTIAL_CODES = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
LOG_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in again"


def is_throttled(code: str) -> bool:
    """Whether S3 turned the request away unread: it surely was not carried out."""
    return code == "SlowDown"


def is_unknown(status: int, code: str) -> bool:
    """Whether this answer leaves open what happened, so that the request can be sent again."""
    return (status >= 500 and status != 501) or status in (408, 429) or code.removeprefix("KMS.") in _UNKNOWN_CODES


def condition_of(if_match: str | None, if_absent: bool = False) -> Condition:
    """Of two, the one that a missing object can break."""
    return "match" if if_match is not None else "absent" if if_absent else ""


def says_nothing_there(status: int, code: str, verb: str, condition: Condition) -> bool:
    """Whether this answer is no error: S3 says that there is no such object to read, to copy or to delete.

    The answer to a HEAD has no body to tell by.
    """
    if status != 404:
        return False
    if verb == "delete":
        return code == NO_SUCH_KEY and condition != "match"
    return verb == "head" or (verb in ("get", "copy") and code == NO_SUCH_KEY)


def refusal(
    status: int,
    code: str,
    said: str,
    verb: str,
    bucket: str,
    key: str,
    *,
    retried: bool,
    condition: Condition = "",
    endpoint: str = "",
) -> QueueError:
    """What to raise for an error answer of the server."""
    where = f"{verb.upper()} s3://{bucket}/{key}"
    # Without a condition nobody can have been first: the write of a message would count as one that was stored.  [P1]
    if (status == 412 and condition) or (status == 404 and code == NO_SUCH_KEY and condition == "match"):
        return Conflict(f"{where}: someone else was first", retried=retried)
    if status == 404 and code not in ("NoSuchBucket", *_UNKNOWN_CODES):
        what = " ".join(part for part in dict.fromkeys(("404", code, said)) if part)
        at = f"the endpoint {endpoint}" if endpoint else "its endpoint"
        problem: QueueError = NotFound(f"{where}: {what}; no bucket answers so: check the name {bucket!r}, and {at}")
    else:
        problem = _refusal(status, code, said, verb, bucket, key)
    if retried and verb in ("put", "copy", "delete") and not isinstance(problem, Unavailable):
        # This try was refused, but the result of the one before is still unknown.
        return Unavailable(f"{problem}; an earlier try may have been carried out")
    return problem


def _refusal(status: int, code: str, said: str, verb: str, bucket: str, key: str) -> QueueError:
    where = f"{verb.upper()} s3://{bucket}/{key}"
    said = said or code or str(status)
    if code in ("NoSuchBucket", "PermanentRedirect") or status == 301:
        return NotFound(f"{where}: there is no bucket {bucket!r} here; check name, region and endpoint")
    if is_unknown(status, code):
        return Unavailable(f"{where}: {code or status}")
    if code in _CREDENTIAL_CODES:
        return AccessDenied(f"{where}: {code}: {said}; the credentials are not valid: {LOG_IN}")
    if verb in ("get", "head", "copy") and _is_unreadable(code, said):
        return Unreadable(f"{where}: {code}: {said}")
    if status in (401, 403):
        return AccessDenied(f"{where}: {code}; {_missing_permission(verb, bucket, key)}")
    if code == "KeyTooLongError" or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        return InvalidName(f"{where}: the key is too long for S3")
    if verb == "head" and status == 400:
        # The answer to a HEAD has no body that says which. A GET of the same object says it.
        return AccessDenied(
            f"{where}: {said}: only its producer has the key that it is encrypted with (SSE-C), or the credentials are "
            f"not valid: {LOG_IN}"
        )
    if code in ("EntityTooLarge", "MaxMessageLengthExceeded"):
        return MessageTooLarge(f"{where}: larger than S3 accepts in one request")
    return InvalidRequest(f"{where}: {said}")


def _is_unreadable(code: str, said: str) -> bool:
    """Archived; or encrypted with a KMS key that is disabled, deleted or not ours, or with a key that only its producer
    has (SSE-C)."""
    is_encrypted = code in ("InvalidRequest", "AccessDenied") and ("Server Side Encryption" in said or "kms:" in said)
    return code == "InvalidObjectState" or code.startswith("KMS.") or is_encrypted


def _missing_permission(verb: str, bucket: str, key: str) -> str:
    if verb == "list":
        return f"allow s3:ListBucket on arn:aws:s3:::{bucket} for the prefix {key!r}"
    if verb == "copy":
        return f"allow s3:PutObject on arn:aws:s3:::{bucket}/{key} and s3:GetObject on the source"
    hint = "; without s3:ListBucket, S3 also answers 403 for a missing object" if verb in ("get", "head") else ""
    return f"allow {_PERMISSIONS[verb]} on arn:aws:s3:::{bucket}/{key}{hint}"
