"""Backend: results of Celery tasks as objects, `celery/results/task-{id}`.

The write of a result is conditional, so that a worker that was taken for dead cannot replace a success. The parts of a
chord are counted by objects, each part once, and its body is sent once; nobody polls for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.log import get_logger
from kombu.exceptions import EncodeError, OperationalError
from kombu.utils.encoding import bytes_to_str, ensure_bytes

from s3queue.clock import Clock, SystemClock
from s3queue.errors import Conflict, Unavailable
from s3queue.keys import Keys
from s3queue.store import Object, ObjectStore, delete_seen, listing, put_surely

from .address import RESULTS_OF, Address
from .naming import sent_once, tail_of_task

_log = get_logger(__name__)
#: A larger result is not stored: its task fails.
RESULT_BYTES = 64 * 1024 * 1024
#: GETs at one time, for the results of a group.
READERS = 8
#: A result that others keep changing is tried again so often.
TRIES = 8
#: Seconds before the end of a chord's part is tried again.
PAUSES = (0.2, 0.8, 2.0, 5.0, 10.0, 20.0)
#: Nobody knows what was done: S3 did not answer, or kombu gave up sending.
UNKNOWN = (Unavailable, OperationalError)
_JOINED = "~joined"
#: Names the part that calls the errbacks.
_FAILED = "~failed"
#: Of a key; the id of a task may be longer, and is then told by its digest.
_LONGEST = 400


class Backend(KeyValueStoreBackend):
    """A result backend in a bucket: `s3queue://bucket`, or `s3queue://bucket/{queue}` for `{queue}/results/`."""

    task_keyprefix = "task-"
    group_keyprefix = "group-"
    chord_keyprefix = "chord-"
    supports_native_join = True
    persistent = True

    def __init__(self, app: Any = None, url: str | None = None, **kwargs: Any) -> None:
        self._address = Address.parse(url or f"s3queue://{RESULTS_OF}")
        super().__init__(app=app, url=url, **kwargs)
        self._clock: Clock = SystemClock()
        self._prefix = Keys(self._address.results_of).prefix("results")

    @property
    def _store(self) -> ObjectStore:
        # Asked for each time: a pool's child has its own.
        return self._address.open()

    def _key(self, key: bytes | str) -> str:
        quoted = quote(bytes_to_str(key), safe="~")
        if len(quoted) > _LONGEST:
            quoted = f"{quoted[:64]}~{hashlib.sha256(quoted.encode()).hexdigest()}"
        return self._prefix + quoted

    # Results

    def get(self, key: bytes | str) -> bytes | None:
        found = self._store.open(self._key(key))
        return found.read(RESULT_BYTES) if found else None

    def mget(self, keys: Iterable[bytes | str]) -> list[bytes | None]:
        with ThreadPoolExecutor(READERS) as readers:
            return list(readers.map(self.get, keys))

    def set(self, key: bytes | str, value: bytes | str) -> None:
        self._store.put(self._key(key), ensure_bytes(value), content_type=self._content_type)

    def delete(self, key: bytes | str) -> None:
        self._store.delete(self._key(key))

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """A success stays, whoever comes later: the condition of the PUT makes sure, not only the look before it."""
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        key, body = self._key(self.get_key_for_task(task_id)), ensure_bytes(self.encode(meta))
        if len(body) > RESULT_BYTES:
            # For Celery, a result that it cannot encode: the task has failed, with this text.
            raise EncodeError(f"the result of {task_id} has {len(body)} bytes, not at most {RESULT_BYTES}")
        for _ in range(TRIES):
            found = self._store.open(key)
            if found and self._is_success(found):
                return result
            etag = found.etag if found else None
            try:
                put_surely(
                    self._store, key, body, if_match=etag, if_absent=etag is None, content_type=self._content_type
                )
                return result
            except Conflict:
                continue
        raise Unavailable(f"result not stored: {key} is being changed all the time; try again")

    def _is_success(self, found: Object) -> bool:
        try:
            return bool(self.decode_result(found.read(RESULT_BYTES))["status"] == states.SUCCESS)
        except Unavailable:
            raise
        except Exception as error:
            # Nobody can read it as a result: the one that comes takes its place.
            _log.warning("stored result cannot be read, replaced: %s: %r", found.key, error)
            return False

    @property
    def _content_type(self) -> str:
        return str(self.content_type or "application/octet-stream")

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """For `result_backend_always_retry`: each of these requests may be repeated."""
        return isinstance(exc, Unavailable)

    def cleanup(self) -> None:
        """Delete results older than `result_expires`, by S3's clock; `celery beat` asks for it once a day."""
        if not self.expires:
            return
        for page in listing(self._store, self._prefix):
            for entry in page.objects:
                if (page.at - entry.modified_at).total_seconds() > self.expires:
                    delete_seen(self._store, entry.key, etag=entry.etag, modified_at=entry.modified_at)

    # Chords

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Remember the members; each of them notes its own end."""
        self.ensure_chords_allowed()
        self.app.GroupResult(*header_result_args).save(backend=self)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Note that this part has ended; whoever then sees all of them sends the body.

        Several may see that, and one may crash before it has sent the body: our broker stores one message only, so all
        of them may send it.
        """
        group, part = request.group, request.id
        if not group or not part or not request.chord:
            return
        callback = maybe_signature(request.chord, app=self.app)
        for pause in (*PAUSES, None):
            try:
                return self._end_part(group, part, request.chord.get("chord_size"), callback)
            except UNKNOWN as error:
                # Celery acknowledges the task although this fails, and the chord would wait for ever.
                if pause is None:
                    return self._give_up(group, part, callback, error)
                _log.warning("end of a chord's part unknown, trying again: %s of %s: %s", part, group, error)
                self._clock.sleep(pause)

    def _end_part(self, group: str, part: str, size: int | None, callback: Any) -> None:
        """Every step may be repeated.

        Raises:
            Unavailable, OperationalError: unknown what was done.
        """
        folder = self._folder(group)
        self._store.put(folder + tail_of_task(part)[1:], b"")
        ended = {entry.key for page in listing(self._store, folder) for entry in page.objects}
        if folder + _JOINED in ended:
            return
        members = GroupResult.restore(group, backend=self)
        if members is None:
            self._fail_chord(group, part, callback, ChordError(f"GroupResult {group} no longer exists"))
            return
        if len(ended - {folder + _FAILED}) < (size or len(members)):
            return
        try:
            with allow_join_result():
                results = members.join_native(timeout=self.app.conf.result_chord_join_timeout, propagate=True)
        except UNKNOWN:
            raise
        except Exception as error:
            culprit = next(members._failed_join_report(), None)
            reason = f"Dependency {culprit.id} raised {error!r}" if culprit else repr(error)
            self._fail_chord(group, part, callback, ChordError(reason))
            return
        try:
            with sent_once(group):
                callback.apply_async((results,))
        except UNKNOWN:
            raise
        except Exception as error:
            self._fail_chord(group, part, callback, ChordError(f"Callback error: {error!r}"))
            return
        self._store.put(folder + _JOINED, b"")

    def _folder(self, group: str) -> str:
        return self._key(self.get_key_for_chord(group)) + "/"

    # A chord that fails

    def _fail_chord(self, group: str, part: str, callback: Any, error: ChordError) -> None:
        """Several parts may see the end: each stores the failure, in case that another one dies before it has, and one
        of them calls the errbacks.

        Raises:
            Unavailable: unknown what was done; no errback was called.
        """
        _log.error("chord failed: %s: %s", group, error)
        self.chord_error_from_stack(_without_errbacks(callback), error)
        if not self._calls_errbacks(group, part):
            return
        try:
            self.chord_error_from_stack(callback, error)
            # By the one that has called them alone: it is run again, and calls them, if its worker dies before this.
            self._store.put(self._folder(group) + _JOINED, b"")
        except UNKNOWN as unknown:
            # Not tried again: that would call them again.
            _log.warning("end of a chord's errbacks not noted: %s: %s", group, unknown)

    def _calls_errbacks(self, group: str, part: str) -> bool:
        """Whether this part is the one that calls them: one PUT wins, and counts when the part is run again, too."""
        key, name = self._folder(group) + _FAILED, tail_of_task(part)[1:].encode()
        for _ in range(TRIES):
            try:
                put_surely(self._store, key, name, if_absent=True)
                return True
            except Conflict:
                found = self._store.open(key)
            if found:
                return found.read(RESULT_BYTES) == name
        raise Unavailable(f"{key} is refused, and nothing is there; try again")

    def _give_up(self, group: str, part: str, callback: Any, unknown: Exception) -> None:
        error = ChordError(f"unknown whether its body was sent: {unknown!r}")
        _log.error("chord failed: %s: %s", group, error)
        try:
            calls_errbacks = self._calls_errbacks(group, part)
        except UNKNOWN:
            # Rather twice than never.
            calls_errbacks = True
        self.chord_error_from_stack(callback if calls_errbacks else _without_errbacks(callback), error)


def _without_errbacks(callback: Any) -> Any:
    """The body of a chord, to store its failure alone: a group has the errbacks of its tasks, however deep."""

    def stripped(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: stripped(value) for name, value in found.items() if name != "link_error"}
        return [stripped(value) for value in found] if isinstance(found, list | tuple) else found

    return maybe_signature(stripped(callback), app=callback.app)
