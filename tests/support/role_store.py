"""A store whose requests are sent under an IAM role: what the role may not do is refused, what it did is noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import IO, Any, TypeVar

from s3queue.errors import AccessDenied
from s3queue.store import Object, ObjectInfo, ObjectStore, Page, Written
from support.iam_template import Role
from support.killed_store import Killed

#: What S3 asks KMS for, in the sender's name, if the bucket has a key.
_OF_KMS = {"s3:GetObject": "kms:Decrypt", "s3:PutObject": "kms:GenerateDataKey"}
T = TypeVar("T")


class RoleStore:
    """A store that sends each request as someone, and notes what was needed."""

    def __init__(self, inner: ObjectStore, role: Role, bucket: str) -> None:
        self.inner, self.url = inner, inner.url
        self._role, self._bucket, self._key = role, bucket, role.template.bucket_key
        self.refused: list[str] = []
        #: How many more requests are answered before the sender is dead; None: it lives.
        self.requests_left: int | None = None
        #: Kind of object → the letters of infra.permissions that were used on it.
        self.used: dict[str, set[str]] = defaultdict(set)

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
        # S3 wants to see that whoever names an ETag may know it.
        if if_match:
            self._need("g", "s3:GetObject", key)
        self._need("p", "s3:PutObject", key, if_match=if_match, if_absent=if_absent)
        return self.inner.put(
            key, body, if_match=if_match, if_absent=if_absent, metadata=metadata, content_type=content_type, once=once
        )

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        self._need("g", "s3:GetObject", key)
        return self._unless_missing(self.inner.open(key, if_match=if_match), key)

    def head(self, key: str) -> ObjectInfo | None:
        self._need("g", "s3:GetObject", key)
        return self._unless_missing(self.inner.head(key), key)

    def delete(self, key: str, *, if_match: str | None = None) -> datetime:
        if if_match:
            self._need("g", "s3:GetObject", key)
        self._need("d", "s3:DeleteObject", key)
        return self.inner.delete(key, if_match=if_match)

    def delete_many(self, seen: Mapping[str, str]) -> frozenset[str]:
        # As for each of them alone; one request, all the same.
        for number, key in enumerate(seen):
            self._need("g", "s3:GetObject", key, is_request=False)
            self._need("d", "s3:DeleteObject", key, is_request=number == 0)
        return self.inner.delete_many(seen)

    def copy(self, source: str, target: str, **options: Any) -> Written | None:
        self._need("g", "s3:GetObject", source)
        self._need("p", "s3:PutObject", target)
        return self.inner.copy(source, target, **options)

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        if not self._role.may_list(self._bucket, prefix):
            self._refuse(f"LIST {prefix}")
        return self.inner.list(prefix, after=after, delimiter=delimiter, limit=limit)

    def presign_put(self, key: str, *, seconds: int, if_absent: bool = False) -> str:
        raise NotImplementedError("no function presigns")

    def presign_get(self, key: str, *, seconds: int) -> str:
        raise NotImplementedError("no function presigns")

    def _need(
        self,
        letter: str,
        action: str,
        key: str,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        is_request: bool = True,
    ) -> None:
        context = ({"s3:if-match": if_match} if if_match else {}) | ({"s3:if-none-match": "*"} if if_absent else {})
        self.used[key.split("/")[1]].add(letter)
        if not self._role.may(action, f"{self._bucket}/{key}", context):
            self._refuse(f"{action} {key}")
        if self._key and (asked := _OF_KMS.get(action)):
            encrypts = {"kms:EncryptionContext:aws:s3:arn": self._bucket}
            if not self._role.may(asked, self._key, encrypts):
                self._refuse(f"{asked} {key}")
        if self.requests_left is not None and is_request:
            self.requests_left -= 1
            if self.requests_left < 0:
                raise Killed

    def _unless_missing(self, found: T | None, key: str) -> T | None:
        # S3 does not say that an object is missing to whoever may not list it.
        if found is None and not self._role.may_list(self._bucket, key):
            raise AccessDenied(f"{key} is missing, or not to be read")
        return found

    def _refuse(self, what: str) -> None:
        self.refused.append(what)
        raise AccessDenied(what)
