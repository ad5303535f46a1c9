"""What is judged of ids that count for a while: one message each, and no late PUT of it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from s3queue.documents.message import MOVED, ONCE
from s3queue.paths import partition_of

from .ledger import Ledger, Life
from .world import World

#: For so many seconds each id counts.
DEDUP_SECONDS = 12.0


class Dedup:
    """The markers of one queue, and the messages that they name."""

    def __init__(self, world: World, ledger: Ledger, broken: Callable[[str, str], None]) -> None:
        self._world = world
        self._ledger = ledger
        self._broken = broken
        #: Every path that a marker has named.
        self.named: set[str] = set()

    def marked(self, digest: str, before: Any, after: Any) -> str:
        """[P5] A marker gives way to another message's only when its time is over. It may be dated anew before that.

        Returns what it names. That of a replay never gives way.
        """
        path = str(json.loads(after.body)["path"])
        self.named.add(path)
        if before and json.loads(before.body)["path"] == path:
            return path
        age = (after.modified_at - before.modified_at).total_seconds() if before else float("inf")
        if age < DEDUP_SECONDS or (before and digest.startswith(MOVED)):
            self._broken("P5", f"the id {digest} stands for a second message after {age} s")
        return path

    def is_repeated(self, life: Life, put_id: str) -> bool:
        """Whether this is another PUT of a message of which there is only one, and that is finished."""
        return put_id.startswith((ONCE, MOVED)) and any(
            _is_outcome(one, life, put_id) for one in self._ledger.of_group(life)
        )

    def check_start(self, life: Life, put_id: str, leased_at: float) -> None:
        """[P4] A message of which there is only one runs no more once it is finished, whoever PUTs it."""
        alike = self._ledger.of_group(life)
        finished = [one for one in alike if one.record and one.recorded_at < leased_at]
        if put_id.startswith(MOVED) and not partition_of(life.path):
            # Its name is anybody's, and has one record: the outcome of another message may have taken its place.
            finished = sorted(finished, key=lambda one: one.recorded_at)[-1:]
        elif not put_id.startswith((ONCE, MOVED)):
            return
        if any(_is_outcome(one, life, put_id) for one in finished if one is not life):
            self._broken("P4", f"{life.path} runs again: a second PUT of it came late")

    def check_named(self, path: str) -> None:
        if path not in self.named:
            self._broken("P5", f"{path} was acknowledged, and no marker has ever named it")


def _is_outcome(one: Life, life: Life, put_id: str) -> bool:
    """Whether that is how the message of this id ended: under the id; or, if nobody could read it, without one, and
    then with that of the replay in its place.
    """
    if one.record is None or one.record.put_id == put_id:
        return one.record is not None
    is_same = one.path == life.path and put_id.startswith(ONCE)
    return is_same and (not one.record.put_id or one.record.put_id.startswith(MOVED))
