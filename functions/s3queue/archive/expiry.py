"""When records expire that nobody has archived: for the archive's report, its command, and an alarm."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

_log = logging.getLogger(__name__)
#: The metric that the alarm ArchiveLate watches: the age of the oldest record that is not archived, in seconds.
METRICS_OF, UNARCHIVED, BUCKET = "s3queue", "UnarchivedAge", "bucket"
#: Lifecycle rules count whole days, and run once a day: nothing goes before this share of its time is over.
LATE = 0.5


def left_until_expiry(oldest_at: datetime, retention: timedelta, now: datetime) -> timedelta:
    """How long until the lifecycle rule may remove the oldest record; not negative. It may take a day longer."""
    return max(timedelta(), oldest_at + retention - now)


def is_late(oldest_at: datetime | None, retention: timedelta, now: datetime) -> bool:
    """Whether the oldest record that is not archived has used up half of its time."""
    return oldest_at is not None and now - oldest_at > retention * LATE


def put_age(client: Any, bucket: str, age: timedelta) -> bool:
    """Publish how old the oldest record is that is not archived; False if CloudWatch did not take it.

    `client` is boto3's `cloudwatch` client. A metric is not worth a run: an error is logged, and the alarm takes
    missing data for bad news.
    """
    try:
        client.put_metric_data(
            Namespace=METRICS_OF,
            MetricData=[
                {
                    "MetricName": UNARCHIVED,
                    "Dimensions": [{"Name": BUCKET, "Value": bucket}],
                    "Value": age.total_seconds(),
                    "Unit": "Seconds",
                }
            ],
        )
    except Exception as error:
        _log.warning("metric %s not published: %s", UNARCHIVED, error)
        return False
    return True
