"""DeleteObjects with ETags: many objects in one request; one by one where a server does not compare the ETags.

S3 compares them. Others ignore them, and would delete what was PUT anew: each is tried first, on an object made for it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from s3queue.errors import Conflict, InvalidRequest, QueueError, Unavailable
from s3queue.store import MANY, ObjectStore, delete_unique

from .s3_errors import NO_SUCH_KEY, refusal
from .wire import quoted

_log = logging.getLogger(__name__)
#: Sends one DeleteObjects, once, and returns the keys of which its answer does not say that nothing lies there.
Send = Callable[[Mapping[str, str]], frozenset[str]]
_AWS = (".amazonaws.com", ".amazonaws.com.cn")
#: XML 1.0 has no control characters, and its readers change line ends: such keys are deleted one by one.
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_NO_ETAG = "0" * 32


class BulkDelete:
    """How one store deletes many objects."""

    def __init__(self, address: str) -> None:
        self._mutex = threading.Lock()
        #: None: not tried yet.
        self._compares_etags = True if (urlsplit(address).hostname or "").endswith(_AWS) else None

    def delete(
        self, store: ObjectStore, send: Send, seen: Mapping[str, str], token: Callable[[], str]
    ) -> frozenset[str]:
        """As ObjectStore.delete_many."""
        check_many(seen)
        plain = {key: etag for key, etag in seen.items() if key == key.strip() and not _NOT_IN_XML.search(key)}
        if len(plain) < 2 or not self._is_fit(store, send, next(iter(plain)), token):
            return delete_one_by_one(store, seen)
        unknown = send(plain)
        return unknown | delete_one_by_one(store, {key: seen[key] for key in seen.keys() - plain.keys()})

    def _is_fit(self, store: ObjectStore, send: Send, key: str, token: Callable[[], str]) -> bool:
        with self._mutex:
            if self._compares_etags is None:
                self._compares_etags = _compares_etags(store, send, key, token())
                if not self._compares_etags:
                    _log.info("server does not compare ETags in DeleteObjects, deleting one by one: %s", store.url)
            return self._compares_etags


def _compares_etags(store: ObjectStore, send: Send, key: str, token: str) -> bool:
    """Whether an object stays that has another ETag, and goes that has this one.

    The object lies among the idempotency records of the queue: its worker may write and delete there, nobody is
    notified or counts them, no record has such a name, and a lifecycle rule removes what a crash leaves behind.
    """
    probe = f"{key.partition('/')[0]}/idempotency/probe-{token}"
    etag = None
    try:
        etag = store.put(probe, token.encode(), if_absent=True).etag
        send({probe: _NO_ETAG})
        if store.head(probe) is not None:
            send({probe: etag})
            if store.head(probe) is None:
                return True
    except QueueError as error:
        _log.debug("DeleteObjects could not be tried: %s", error)
    try:
        if etag:
            delete_unique(store, probe, if_match=etag)
    except QueueError as error:
        _log.debug("object of the trial may be left: %s", error)
    return False


def check_many(seen: Mapping[str, str]) -> None:
    """Raises InvalidRequest for more keys than S3 deletes at once."""
    if len(seen) > MANY:
        raise InvalidRequest(f"{len(seen)} objects at once; S3 deletes at most {MANY}")


def delete_one_by_one(store: ObjectStore, seen: Mapping[str, str]) -> frozenset[str]:
    """As ObjectStore.delete_many, with a conditional DELETE for each key.

    After an unknown answer nothing more is sent: of a server that is down, every answer would take a whole time-out.
    What was not asked for counts as unknown.
    """
    unknown: set[str] = set()
    keys = list(seen)
    for number, key in enumerate(keys):
        try:
            store.delete(key, if_match=seen[key])
        except Conflict:
            unknown.add(key)
        except Unavailable:
            return frozenset(unknown.union(keys[number:]))
    return frozenset(unknown)


def request_body(seen: Mapping[str, str]) -> bytes:
    """The XML that asks for it. Not `Quiet`: then half an answer would say that everything was deleted."""
    objects = "".join(
        f"<Object><Key>{_escaped(key)}</Key><ETag>{_escaped(quoted(etag))}</ETag></Object>"
        for key, etag in seen.items()
    )
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{objects}</Delete>'.encode()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def left_unknown(
    seen: Mapping[str, str], deleted: Sequence[str], errors: Sequence[Mapping[str, str]], bucket: str
) -> frozenset[str]:
    """The keys of which an answer does not say that nothing lies there: another ETag, an error, or no word at all.

    Raises:
        Unavailable: it says nothing at all: it was cut off.
        AccessDenied: one of them may not be deleted.
    """
    if not (deleted or errors):
        raise Unavailable("the answer names no object: it was cut off")
    known = set(deleted)
    for error in errors:
        key, code = error.get("Key", ""), error.get("Code", "")
        if code == "AccessDenied":
            raise refusal(403, code, error.get("Message", ""), "delete", bucket, key, retried=False)
        if code == NO_SUCH_KEY:
            known.add(key)
    return frozenset(seen) - known
