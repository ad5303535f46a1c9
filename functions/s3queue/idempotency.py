"""S3PersistenceLayer: Powertools' Idempotency on the queue's own bucket.

Every write is conditional, so of many racing calls with one key exactly one runs the function. The limit of this: a
call whose in-progress time has run out may still be running when the next one starts. Then the result that is stored
first is kept, and a failure of the first call never deletes what the second one wrote.
"""

from __future__ import annotations

import threading
from typing import Any

from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import STATUS_CONSTANTS, DataRecord

from .clock import Chance, Clock, RandomChance, SystemClock
from .encoding import as_whole, dump, load_current
from .errors import Conflict, CorruptState, Unavailable
from .keys import Keys
from .store import ObjectStore, delete_unique, open_state, put_surely

IN_PROGRESS = STATUS_CONSTANTS["INPROGRESS"]
COMPLETED = STATUS_CONSTANTS["COMPLETED"]
#: How often a write is tried when others write between our GET and our PUT.
TRIES = 5
#: Larger objects are not read. A function answers with 6 MB at most, which escaping may double.
RECORD_BYTES = 16 * 1024 * 1024


class S3PersistenceLayer(BasePersistenceLayer):
    """Idempotency records as objects: `{queue}/idempotency/{hash}`.

        layer = S3PersistenceLayer(queue.store, queue.keys)

        @idempotent_function(data_keyword_argument="order", persistence_store=layer)
        def charge(order): ...

    The first call costs two PUTs, a repeated one a PUT and a GET. The next call with the same key takes an expired
    record over; a lifecycle rule on the prefix removes the others. Powertools keeps the function's name in the layer,
    so give each function that runs in several threads a layer of its own.
    """

    def __init__(
        self, store: ObjectStore, keys: Keys, *, clock: Clock | None = None, chance: Chance | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store = store
        self._keys = keys
        self._clock = clock or SystemClock()
        self._chance = chance or RandomChance()
        #: Idempotency key → ETag of the record that this thread's running call wrote.
        self._mine = threading.local()

    def _get_record(self, idempotency_key: str) -> DataRecord:
        found = self._read(idempotency_key)
        if found is None:
            raise IdempotencyItemNotFoundError
        return found[0]

    def _put_record(self, data_record: DataRecord) -> None:
        etag: str | None = None
        for _ in range(TRIES):
            try:
                self._etags[data_record.idempotency_key] = self._write(data_record, etag)
                return
            except Conflict as conflict:
                found = self._read(data_record.idempotency_key)
                if found is None:
                    etag = None
                    continue
                old, etag = found
                if not self._is_over(old):
                    # The check raises if the payload differs: that is the caller's mistake, not a repeated call.
                    self._validate_payload(data_payload=data_record, stored_data_record=old)
                    self._save_to_cache(data_record=old)
                    raise IdempotencyItemAlreadyExistsError(old_data_record=old) from conflict
        raise Unavailable(f"{self._keys.idempotency(data_record.idempotency_key)}: too many writers at once; try again")

    def _update_record(self, data_record: DataRecord) -> None:
        """Store the result, unless another call with this key has stored one: the first result is kept."""
        etag = self._etags.pop(data_record.idempotency_key, None)
        for _ in range(TRIES):
            try:
                self._write(data_record, etag)
                return
            except Conflict:
                found = self._read(data_record.idempotency_key)
                if found and found[0].status == COMPLETED:
                    return
                etag = found[1] if found else None
        raise Unavailable(f"{self._keys.idempotency(data_record.idempotency_key)}: too many writers at once; try again")

    def _delete_record(self, data_record: DataRecord) -> None:
        """Forget that the call began, unless another call has taken the record over."""
        etag = self._etags.pop(data_record.idempotency_key, None)
        if etag is None:
            found = self._read(data_record.idempotency_key)
            if found is None or found[0].status == COMPLETED:
                return
            etag = found[1]
        delete_unique(self._store, self._keys.idempotency(data_record.idempotency_key), if_match=etag)

    @property
    def _etags(self) -> dict[str, str]:
        etags: dict[str, str] = self._mine.__dict__.setdefault("etags", {})
        return etags

    def _is_over(self, record: DataRecord) -> bool:
        """Whether the next call may take the record over, by this machine's clock, as in Powertools' own layers."""
        now = self._clock.now().timestamp()
        if record.expiry_timestamp is not None and record.expiry_timestamp < int(now):
            return True
        until = record.in_progress_expiry_timestamp
        return record.status == IN_PROGRESS and until is not None and until < int(now * 1000)

    def _write(self, record: DataRecord, etag: str | None) -> str:
        document = {
            "idempotency_key": record.idempotency_key,
            "status": record.status,
            "expiry_timestamp": record.expiry_timestamp,
            "in_progress_expiry_timestamp": record.in_progress_expiry_timestamp,
            "response_data": record.response_data,
            "payload_hash": record.payload_hash,
            "nonce": self._chance.token(),
        }
        key = self._keys.idempotency(record.idempotency_key)
        return put_surely(self._store, key, dump(document), if_match=etag, if_absent=etag is None).etag

    def _read(self, idempotency_key: str) -> tuple[DataRecord, str] | None:
        key = self._keys.idempotency(idempotency_key)
        found = open_state(self._store, key)
        if found is None:
            return None
        document = load_current(found.read(RECORD_BYTES), key)
        if document.get("idempotency_key") != idempotency_key or document.get("status") not in (IN_PROGRESS, COMPLETED):
            raise CorruptState(f"{key} is not an idempotency record for {idempotency_key!r}")
        record = DataRecord(
            idempotency_key=idempotency_key,
            status=document["status"],
            expiry_timestamp=_whole(document, "expiry_timestamp", key),
            in_progress_expiry_timestamp=_whole(document, "in_progress_expiry_timestamp", key),
            response_data=_text(document, "response_data", key),
            payload_hash=_text(document, "payload_hash", key),
        )
        return record, found.etag


def _whole(document: dict[str, Any], name: str, key: str) -> int | None:
    value = document.get(name)
    try:
        return None if value is None else as_whole(value)
    except (TypeError, ValueError) as error:
        raise CorruptState(f"{key}: {name}: {error}") from None


def _text(document: dict[str, Any], name: str, key: str) -> str:
    value = document.get(name, "")
    if not isinstance(value, str):
        raise CorruptState(f"{key}: {name} is {type(value).__name__}, not text")
    return value
