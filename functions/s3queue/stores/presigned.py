"""PresignedUrls: what lets someone without credentials PUT or GET one key of a bucket, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class PresignedUrls:
    """Signed here, by the client's credentials; no request is sent."""

    _bucket: str
    _client: S3Client

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        parameters: dict[str, Any] = {"Bucket": self._bucket, "Key": key} | ({"IfNoneMatch": "*"} if if_absent else {})
        return self._client.generate_presigned_url("put_object", Params=parameters, ExpiresIn=seconds)

    def presign_get(self, key: str, *, seconds: int) -> str:
        parameters = {"Bucket": self._bucket, "Key": key}
        return self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds)
