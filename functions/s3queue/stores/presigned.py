"""PresignedUrls: what lets someone without credentials PUT or GET one key of a bucket, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError

from .sdk_answers import failure_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class PresignedUrls:
    """Signed here, by the client's credentials; no request is sent."""

    _bucket: str
    _client: S3Client

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        parameters: dict[str, Any] = {"Bucket": self._bucket, "Key": key} | ({"IfNoneMatch": "*"} if if_absent else {})
        return self._signed("put", key, parameters, seconds)

    def presign_get(self, key: str, *, seconds: int) -> str:
        return self._signed("get", key, {"Bucket": self._bucket, "Key": key}, seconds)

    def _signed(self, verb: str, key: str, parameters: dict[str, Any], seconds: int) -> str:
        try:
            return self._client.generate_presigned_url(f"{verb}_object", Params=parameters, ExpiresIn=seconds)
        except BotoCoreError as error:
            # Without credentials there is nothing to sign with.
            raise failure_of(error, verb, self._bucket, key) from error
