"""The lock that the tests of locks contend for."""

from __future__ import annotations

from datetime import timedelta

from s3queue.keys import Keys

KEYS = Keys("reports")
KEY = KEYS.lock("monthly")
TTL = timedelta(seconds=5)
