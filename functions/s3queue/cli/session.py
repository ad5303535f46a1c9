"""Session: the global options of one call, and the store and queue that they name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import typer

from s3queue.connect import open_store, split_url
from s3queue.errors import AccessDenied, InvalidRequest, NotFound, QueueNotFound, Unavailable
from s3queue.keys import similar_names
from s3queue.queue import Queue
from s3queue.settings import QueueSettings, aws_region
from s3queue.store import ObjectStore

from .output import Output

_WHERE = "set S3QUEUE_URL, or give --url s3://bucket or s3://bucket/queue"


@dataclass(slots=True, kw_only=True)
class Session(Output):
    """One call of the command."""

    url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    debug: bool = False
    _store: ObjectStore | None = field(default=None, repr=False)

    @classmethod
    def of(cls, ctx: typer.Context) -> Session:
        return ctx.ensure_object(cls)

    @property
    def bucket_url(self) -> str:
        """Without the queue: `s3://bucket`."""
        parts = split_url(self._given_url())
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def bucket(self) -> str:
        return split_url(self._given_url()).netloc

    @property
    def is_s3(self) -> bool:
        return split_url(self._given_url()).scheme == "s3"

    @property
    def named(self) -> str:
        """The queue that the URL names; empty if it names none."""
        return split_url(self.url or os.environ.get("S3QUEUE_URL", "")).path.strip("/")

    def _given_url(self) -> str:
        url = self.url or os.environ.get("S3QUEUE_URL", "")
        parts = split_url(url)
        if not url:
            raise InvalidRequest(f"no bucket was given; {_WHERE}")
        if "@" in parts.netloc:
            # A command line is in the shell's history, and everyone on the machine can read it.
            raise InvalidRequest(
                "the command takes no credentials in a URL: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                "AWS_ENDPOINT_URL instead"
            )
        if parts.scheme == "file":
            raise InvalidRequest(f"{url!r} is a folder, and a queue needs an S3 bucket; {_WHERE}")
        if parts.scheme not in ("s3", "memory") or not parts.netloc:
            raise InvalidRequest(f"{url!r} is not s3://bucket or s3://bucket/queue; {_WHERE}")
        return url

    def store(self) -> ObjectStore:
        """The bucket.

        Raises:
            InvalidRequest: the URL names no bucket. AccessDenied: boto3 cannot make a client.
        """
        if self._store is None:
            if self.is_s3:
                self._store = self._built(
                    lambda: open_store(self.bucket_url, endpoint_url=self.endpoint, region=self.region)[0]
                )
            else:
                # A memory URL without a path would name a queue; only the bucket is needed here.
                self._store = open_store(f"{self.bucket_url}/-")[0]
        assert self._store
        return self._store

    @property
    def endpoint(self) -> str | None:
        # Not left to boto3: an endpoint also decides how buckets are addressed.
        return self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")

    def client(self, service: str) -> Any:
        """A client for another AWS service, with the operator's own credentials."""
        import boto3
        from botocore.config import Config

        config = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3})
        options: dict[str, Any] = {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region or aws_region(),
            "config": config,
        }
        return self._built(lambda: boto3.client(service, **options))  # type: ignore[call-overload]

    def s3_client(self) -> Any:
        """A client for S3 requests that the store does not send: notifications, versioning."""
        from s3queue.stores.s3 import client

        return self._built(lambda: client(self.endpoint, self.region))

    def _built(self, build: Any) -> Any:
        """The client; if it cannot be made, an error that says what to check: profile, region, address."""
        from botocore.exceptions import BotoCoreError

        try:
            return build()
        except BotoCoreError as error:
            raise AccessDenied(f"no AWS client: {error}; check AWS_PROFILE, AWS_REGION and --endpoint-url") from error
        except InvalidRequest:
            raise
        except ValueError as error:
            raise InvalidRequest(f"{error}; write --endpoint-url http://host:port") from error

    def queue(
        self, name: str | None = None, *, settings: QueueSettings | None = None, may_be_new: bool = False
    ) -> Queue:
        """The queue that the argument names (a name or a whole URL), otherwise the one that the URL names.

        Without `settings`, it has those that its deployment or a worker published.

        Raises:
            InvalidRequest: neither names a queue. InvalidName: no queue can have that name.
            QueueNotFound: there is none of that name; not if it `may_be_new`.
        """
        if name and "://" in name:
            self.url, name, self._store = name, None, None
        name = name or self.named
        if not name:
            raise InvalidRequest(f"no queue was given; name it, or use --url {self.bucket_url}/QUEUE")
        # Nothing is sent in an operator's name; a worker's definition says what it may send.
        queue = Queue(store=self.store(), name=name, settings=settings or QueueSettings(), sends_to=())
        if settings is None:
            self._find(queue, may_be_new)
        return queue

    def _find(self, queue: Queue, may_be_new: bool) -> None:
        """Use what is published of the queue. A producer who may only PUT is not told whether it exists."""
        try:
            if queue.define_as_published() or may_be_new:
                return
            if not queue.store.list(queue.keys.root, limit=1).objects:
                raise QueueNotFound(queue.name, self.names_like(queue.name))
        except AccessDenied:
            return
        except (NotFound, Unavailable):
            # What is wrong with the bucket, the next request says better, or the doctor.
            if not may_be_new:
                raise

    def names_like(self, name: str) -> list[str]:
        """The queues whose names look like this one, which is none of them. One LIST."""
        from s3queue.dashboard.overview import queue_names

        try:
            return similar_names(name, [other for other in queue_names(self.store()) if other != name])
        except AccessDenied:
            return []


def shifted(session: Session, queue: str | None, wanted: str | None, what: str) -> tuple[str | None, str]:
    """QUEUE can be left out if the URL names it: a single argument is then the other one.

    Raises:
        InvalidRequest: the other argument is missing.
    """
    if wanted is None and session.named:
        queue, wanted = None, queue
    if wanted is None:
        raise InvalidRequest(f"{what} is missing; -h shows an example")
    return queue, wanted
