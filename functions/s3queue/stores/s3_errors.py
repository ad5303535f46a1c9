"""What an error answer of S3 means; the only file that knows S3's error codes.

404 and 412: the condition did not hold. 5xx and time-outs: the result is unknown. Everything else says what to change.
"""

from __future__ import annotations

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
#: CopyObject accepts 5 GB; a larger object is copied in parts.
COPY_BYTES = 5 * 1000**3
_UNKNOWN_CODES = {
    "RequestTimeout",
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "Throttling",
    "RequestTimeTooSkewed",
    "TemporaryRedirect",
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
    return (status >= 500 and status != 501) or status in (408, 429) or code in _UNKNOWN_CODES


def refusal(status: int, code: str, said: str, verb: str, bucket: str, key: str, *, retried: bool) -> QueueError:
    """What to raise for an error answer of the server."""
    problem = _refusal(status, code, said, verb, bucket, key, retried=retried)
    if retried and verb in ("put", "copy", "delete") and not isinstance(problem, (Conflict, Unavailable)):
        # This try was refused, but the result of the one before is still unknown.
        return Unavailable(f"{problem}; an earlier try may have been carried out")
    return problem


def _refusal(status: int, code: str, said: str, verb: str, bucket: str, key: str, *, retried: bool) -> QueueError:
    where = f"{verb.upper()} s3://{bucket}/{key}"
    said = said or code or str(status)
    if code in ("NoSuchBucket", "PermanentRedirect") or status == 301:
        return NotFound(f"{where}: there is no bucket {bucket!r} here; check name, region and endpoint")
    if status in (404, 412):
        return Conflict(f"{where}: someone else was first", retried=retried)
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
