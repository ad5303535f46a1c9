"""The names of a bucket's flows, the last ones first. S3 lists forwards only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from s3queue.documents.flow import FLOWS, is_id
from s3queue.store import LAST, ObjectStore

#: So many pages of names are read, of 1,000 each; if there are more, the last ones are looked for from the end.
MOST_PAGES = 20
#: Then so many names are enough, and so many LISTs.
MOST_LAST, MOST_LISTS = 1000, 100
#: What an id may consist of, in S3's order.
_LETTERS = "-.0123456789abcdefghijklmnopqrstuvwxyz"
_LONGEST = 68


def flow_names(store: ObjectStore) -> list[str]:
    """The ids of all flows but those within others, the last one first; of more than `MOST_PAGES`, the last ones only.

    In the order of their names, and not as S3 lists them: there, `order-1-a/` comes before `order-1/`, and whoever
    pages on compares names.
    """
    found: list[str] = []
    after: str | None = ""
    for _ in range(MOST_PAGES):
        page = store.list(FLOWS, after=after or "", delimiter="/")
        found += page.prefixes
        after = page.next_after
        if after is None:
            break
    else:
        found = _Backwards(store).last()
    return sorted(filter(_is_own, map(_name, found)), reverse=True)


def _name(group: str) -> str:
    return group.removeprefix(FLOWS).rstrip("/")


def _alike(one: str, other: str) -> str:
    """What both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((one[:at] for at, (left, right) in pairs if left != right), min(one, other, key=len))


def _is_own(name: str) -> bool:
    return is_id(name) and "." not in name


@dataclass(slots=True)
class _Backwards:
    """Looks for the highest letter that names go on with, by halves, until what begins alike fits on a page."""

    store: ObjectStore
    _left: int = MOST_LISTS

    def last(self) -> list[str]:
        found: list[str] = []
        count = 0
        for group in self._groups(""):
            found.append(group)
            count += _is_own(_name(group))
            if count == MOST_LAST:
                break
        return found

    def _groups(self, start: str) -> Iterator[str]:
        if self._left <= 0 or len(start) > _LONGEST:
            return
        self._left -= 1
        page = self.store.list(FLOWS + start, delimiter="/")
        if page.next_after is None:
            yield from reversed(page.prefixes)
            return
        if len(alike := self._beginning(start, page.prefixes)) > len(start):
            yield from self._groups(alike)
            return
        letter = len(_LETTERS)
        while (letter := self._highest(start, letter)) >= 0:
            yield from self._groups(start + _LETTERS[letter])
        # Servers differ in where they list it, before or after those that go on.
        if self._left > 0 and self._has(f"{start}/"):
            yield f"{FLOWS}{start}/"

    def _has(self, start: str) -> bool:
        self._left -= 1
        return bool(self.store.list(FLOWS + start, limit=1).objects)

    def _beginning(self, start: str, first: Sequence[str]) -> str:
        """How all names go on that begin like this, from the groups of their first page: a long beginning is no reason
        to look letter by letter.
        """
        alike = _alike(_name(first[0]), _name(first[-1])) if first else start
        while len(alike) > len(start) and self._left > 0:
            self._left -= 1
            further = self.store.list(FLOWS + start, after=FLOWS + alike + LAST, limit=1).objects
            if not further:
                return alike
            alike = _alike(alike, _name(further[0].key))
        return start

    def _highest(self, start: str, below: int) -> int:
        """The highest letter below this one with which a name may go on; -1 if there is none."""
        end = FLOWS + start + (_LETTERS[below] if below < len(_LETTERS) else LAST)
        least, most = -1, below - 1
        while least < most and self._left > 0:
            self._left -= 1
            middle = (least + most + 1) // 2
            # From the end of what comes before it: to some servers a name comes after itself with a slash.
            after = FLOWS + start + chr(ord(_LETTERS[middle]) - 1) + LAST
            objects = self.store.list(FLOWS + start, after=after, limit=1).objects
            if objects and objects[0].key < end:
                least = middle
            else:
                most = middle - 1
        return least if least == most else -1
