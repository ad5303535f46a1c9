"""Dead letters that an operator replays with another payload, as the judge sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from .history import Call
from .ledger import Ledger, Life
from .letters import Letters, is_of_group, replay_of


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
        """[P1] An edit stores what the operator wrote, where a replay goes, and overwrites nothing."""
        path, body = call.asked["path"], call.asked["body"]
        if before and before.body != after.body:
            self._broken("P1", f"an edit of {path} overwrote what was PUT there")
        if after.body != body:
            self._broken("P1", f"an edit of {path} stored other bytes than it was given")
        letter = self._letters.written[path][-1][1]
        # It counts as a replay of the letter, which may go from now on.
        self._letters.replay_put(life.path, letter)
        self._letters.edited.setdefault((replay_of(life.path), letter), set()).add(after.body)
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

    def check_quiet(self, calls: Sequence[Call]) -> None:
        """[P1] Whoever was told that his payload is stored is right: it has run, unless somebody deleted it. What was
        refused has not.
        """
        edits = [call for call in calls if call.name == "edit"]
        for call in edits:
            path, body = call.asked["path"], call.asked["body"]
            if call.state == "ok":
                stored = [life for life in self._ledger.lives[call.answer] if life.body == body]
                if all(life.end == "repeated" for life in stored):
                    self._broken("P1", f"an edit of {path} was acknowledged, and cleared away unrun: {call.answer}")
            elif call.state == "failed":
                # Somebody else may have asked for the same, and been told so, or not.
                mine = [life for life in call.lives if not any(life in one.lives for one in edits if one is not call)]
                if any(life.record and life.put_id == life.record.put_id for life in mine):
                    self._broken("P4", f"an edit of {path} was refused, and has an outcome: {mine[0].path}")

    def _last(self, life: Life) -> Life | None:
        """Whose outcome is known: there is one record for all generations of a name, and journals for a group."""
        others = [one for one in self._ledger.of_group(life) if one is not life and one.record]
        if is_of_group(life.path):
            others = [one for one in others if one.put_id == life.put_id]
        return max(others, key=lambda one: one.recorded_at, default=None)


def repaired(body: bytes, by: str = "") -> bytes:
    """A message whose handler succeeds. Two operators repair it in different ways, if they are named."""
    return json.dumps(json.loads(body) | {"plan": "k", "edited": by or True}).encode()
