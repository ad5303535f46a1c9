"""Documents beside a message's own: idempotency records, and the statistics that the dashboard shows."""

from __future__ import annotations

import contextlib

import pytest
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyItemAlreadyExistsError
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from s3queue.dashboard.api import build
from s3queue.dashboard.bucket_view import STATISTICS
from s3queue.encoding import dump
from s3queue.errors import CorruptState
from s3queue.idempotency import COMPLETED, IN_PROGRESS, S3PersistenceLayer
from s3queue.keys import Keys
from support.api_calls import asking
from support.forged_documents import EXTREMES, HUGE, ForgedStore, forgeries

REAL = dump(
    {
        "idempotency_key": "k",
        "status": IN_PROGRESS,
        "expiry_timestamp": 4_000_000_000,
        "in_progress_expiry_timestamp": 4_000_000_000_000,
        "response_data": "{}",
        "payload_hash": "h",
        "nonce": "n",
    }
)


def test_a_forged_idempotency_record_is_corrupt_and_nothing_else():
    keys = Keys("orders")
    for forged in [HUGE, REAL, *forgeries(REAL)]:
        store = ForgedStore()
        store.put(keys.idempotency("k"), forged)
        layer = S3PersistenceLayer(store, keys)
        with contextlib.suppress(CorruptState):
            layer._get_record("k")
        with contextlib.suppress(CorruptState, IdempotencyItemAlreadyExistsError):
            layer._put_record(DataRecord("k", status=IN_PROGRESS, expiry_timestamp=4_000_000_000))
        with contextlib.suppress(CorruptState):
            layer._update_record(DataRecord("k", status=COMPLETED, response_data="{}"))


@pytest.mark.parametrize("number", range(len(EXTREMES)))
def test_forged_statistics_are_shown_or_left_out(number):
    store = ForgedStore()
    ask = asking(build(store))
    for forged in (EXTREMES[number], f'{{"queues": {EXTREMES[number]}}}', HUGE.decode()):
        store.put(STATISTICS, forged.encode())
        answer = ask("GET", "/api/statistics")
        assert answer.status == 200, answer
