"""DedupMarker: which message a dedup id, or the replay of a group's letter, stands for, for a while."""

from __future__ import annotations

from dataclasses import dataclass

from s3queue.encoding import NONSENSE, as_name, as_text, cut, dump, load_current
from s3queue.errors import CorruptState
from s3queue.store import Object

from .message import MOVED, ONCE

#: Larger objects are not read: a key and two short ids.
MARKER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupMarker:
    """`dedup/{digest of the id}`: the message that was enqueued with this id. Its age, by S3's clock, is the id's.

    `dedup/{put id}`: the place of a replay in its group, which all who replay the same have to share.
    """

    path: str
    #: Of every PUT of that message, whichever call sends it.
    put_id: str
    #: Gives two writes of equal content different ETags.
    nonce: str

    def to_bytes(self) -> bytes:
        return dump({"path": self.path, "put_id": self.put_id, "nonce": self.nonce})

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> DedupMarker:
        """Raises CorruptState, which names the key, if it is not a marker; NewerFormat if a newer version wrote it."""
        found = load_current(body, key)
        try:
            put_id = as_name(found["put_id"])
            if not put_id.startswith((ONCE, MOVED)):
                raise ValueError(f"its put id is {put_id!r}")
            return cls(path=as_name(found["path"]), put_id=put_id, nonce=as_text(found["nonce"]))
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a dedup marker: {cut(error)}") from None

    @classmethod
    def read(cls, found: Object) -> DedupMarker:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(MARKER_BYTES), found.key)
