"""Whether the archive keeps up with records that expire: a warning in its log, and a metric that an alarm watches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from s3queue.archive.expiry import put_age
from s3queue.archive.waiting import count_waiting
from s3queue.errors import QueueError
from s3queue.keys import Keys
from s3queue.store import listing
from spark.storage.bucket import Bucket

_log = logging.getLogger("spark.archive")
#: Half of the five days that records are kept unless a queue says otherwise.
LATE_AFTER = timedelta(days=2.5)


def warn_if_late(queue: str, oldest_at: datetime | None, now: datetime, late_after: timedelta) -> bool:
    """Whether a record had waited for too long before this run took it."""
    if oldest_at is None or now - oldest_at <= late_after:
        return False
    waited = (now - oldest_at).total_seconds() / 3600
    _log.warning("records waited for %.0f hours, and would have expired soon: %s: archive more often", waited, queue)
    return True


def left_behind(bucket: Bucket, failed: Sequence[str], now: datetime) -> timedelta:
    """The age of the oldest record of these queues that no file of the archive holds; zero if there is none.

    If the archive itself cannot be read, nothing in it can be relied on: then that of the oldest record.
    """
    oldest = [at for queue in failed if (at := _oldest(bucket, queue))]
    return max(timedelta(), now - min(oldest)) if oldest else timedelta()


def _oldest(bucket: Bucket, queue: str) -> datetime | None:
    store = bucket.store()
    try:
        return count_waiting(store, bucket.archive().snapshot(), queue).oldest_at
    except QueueError as error:
        _log.error("records that wait cannot be told: %s: %s", queue, error)
    try:
        pages = listing(store, Keys(queue).prefix("records"))
        return min((entry.modified_at for page in pages for entry in page.objects), default=None)
    except QueueError:
        return None


def publish_age(bucket: Bucket, age: timedelta) -> bool:
    """For the alarm ArchiveLate; False if it could not be published, which is logged."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
    try:
        client = boto3.client("cloudwatch", config=config)
    except Exception as error:
        _log.warning("metric not published: %s", error)
        return False
    return put_age(client, bucket.name, age)
