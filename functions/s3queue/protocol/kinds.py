"""Which kinds of objects a queue has: one LIST of its root, before any LIST of a kind."""

from __future__ import annotations

from collections.abc import Iterable

from s3queue.keys import Keys
from s3queue.store import ObjectStore, Page

#: The kinds of objects that a queue can have, in the order of their keys.
KINDS = (
    "bulk",
    "dead",
    "dedup",
    "delayed",
    "idempotency",
    "leases",
    "locks",
    "messages",
    "records",
    "retries",
    "runs",
    "schedules",
    "workers",
)


def find_kinds(store: ObjectStore, keys: Keys, wanted: Iterable[str] = KINDS) -> tuple[Page, set[str]]:
    """The LIST of the queue's root, and which kinds of objects there are. One LIST.

    Anyone may PUT more than a page of objects directly under the root; then each wanted kind that the page does not
    reach is asked for.
    """
    root = store.list(keys.root, delimiter="/")
    kinds = keys.kinds(root.prefixes)
    if root.next_after is not None:
        beyond = {kind for kind in wanted if kind not in kinds and keys.prefix(kind) > root.next_after}
        kinds |= {kind for kind in sorted(beyond) if _exists(store, keys.prefix(kind))}
    return root, kinds


def _exists(store: ObjectStore, prefix: str) -> bool:
    return bool(store.list(prefix, limit=1).objects)
