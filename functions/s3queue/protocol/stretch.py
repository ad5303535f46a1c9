"""Stretch: from which place of its window a worker takes the next message, while others take from the same messages.

Workers that pick at random from the same few hundred messages find more and more of them gone: ten workers lose nine
claims for each that they win. So a worker that has lost a claim keeps to a stretch of its own: it starts anywhere and
goes on message by message, until it meets the stretch of another one; then it starts somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from s3queue.clock import Chance

#: Among how many of the first messages a worker chooses; MORE times as many after each claim that is lost.
CHOICES, MORE, MOST = 32, 8, 1000


class _Ranked(Protocol):
    @property
    def priority(self) -> int: ...


class Stretch:
    """Not safe for threads by itself."""

    def __init__(self, chance: Chance, *, competes: bool) -> None:
        """`competes`: choose at random before a claim is lost, too; otherwise the first."""
        self._chance = chance
        self._competes = competes
        self._choices = CHOICES
        #: Whether a claim was lost since the window was filled.
        self._has_lost = False
        #: Where the stretch goes on; -1: it starts anew.
        self._place = -1

    def next(self, window: Sequence[_Ranked]) -> int:
        """A place in the window, which is not empty, among those of the highest priority."""
        is_contended = self._choices > CHOICES
        if not (self._competes or is_contended):
            return 0
        if self._place < 0 or not is_contended:
            choices = sum(one.priority == window[0].priority for one in window[: self._choices])
            self._place = int(self._chance.uniform(0, choices - 1e-9)) if choices > 1 else 0
        place = min(self._place, len(window) - 1)
        # Towards the oldest: hardly any stretch would begin at the very first one, and it would wait for ever.
        self._place = place - 1
        return place

    def lost(self) -> None:
        """A claim was lost: here begins what another worker has taken."""
        self._choices = min(MORE * self._choices, MOST)
        self._has_lost, self._place = True, -1

    def begin(self) -> None:
        """The window was filled again."""
        if not self._has_lost:
            self._choices = max(CHOICES, self._choices // MORE)
        self._has_lost, self._place = False, -1
