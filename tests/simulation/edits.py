"""Dead letters that an operator replays with another payload, as the judge sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .history import Call
from .ledger import Ledger, Life
from .letters import Letters


class Edits:
    """What was PUT instead of which letter."""

    def __init__(self, ledger: Ledger, letters: Letters, broken: Callable[[str, str], None]) -> None:
        self._ledger = ledger
        self._letters = letters
        self._broken = broken
        #: The id of a replay → the messages that a death was replayed as, edited or not. Another death under the name
        #: has another one, also if it has the same bytes, and its letter came while the first one was being replayed.
        self._replays: dict[str, list[Life]] = {}
        self._edited: set[str] = set()

    def put(self, call: Call, life: Life, before: Any, after: Any) -> None:
        """[P1] An edit stores what the operator wrote, under the name of what died, and overwrites nothing."""
        path, body = call.asked["path"], call.asked["body"]
        if before and before.body != after.body:
            self._broken("P1", f"an edit of {path} overwrote what was PUT there")
        if after.body != body:
            self._broken("P1", f"an edit of {path} stored other bytes than it was given")
        letter = self._letters.written[path][-1][1]
        # It counts as a replay of the letter, which may go from now on.
        self._letters.replay_put(life.path, letter)
        self._letters.edited.setdefault((life.path, letter), set()).add(after.body)
        last = self._last(life)
        if last and last.recorded_at < call.invoked_at and last in self._replays.get(life.put_id, ()):
            self._broken("P4", f"{path} was replayed and has its outcome, and was edited and PUT again")
        self._edited.add(life.put_id)
        self.replayed(life)

    def replayed(self, life: Life) -> None:
        """A letter was PUT back, edited or not."""
        self._replays.setdefault(life.put_id, []).append(life)

    def recorded(self, life: Life) -> None:
        """[P4] Each death is replayed once, edited or not, also if two operators replay it at the same time."""
        last = self._last(life)
        for death in self._edited:
            if last and life in self._replays[death] and last in self._replays[death]:
                self._broken("P4", f"one letter of {life.path} was replayed twice, and both replays have run")

    def _last(self, life: Life) -> Life | None:
        """Whose outcome is known: there is one record for all generations of a name."""
        others = [one for one in self._ledger.lives[life.path] if one is not life and one.record]
        return max(others, key=lambda one: one.recorded_at, default=None)


def repaired(body: bytes) -> bytes:
    """A message whose handler succeeds."""
    return json.dumps(json.loads(body) | {"plan": "k", "edited": True}).encode()
