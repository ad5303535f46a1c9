"""Splitting: a prefix of any size becomes pieces that executors list, without being listed on the driver first.

What fits into one LIST is handed over as it was listed, and not listed again. A larger prefix is cut between its first
and its last key, evenly over the characters that its names have; about twenty LISTs of one key find the last. Nothing
depends on how well that is guessed but the size of the pieces: together they always cover the prefix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from s3queue.paths import PARTITION
from s3queue.store import ObjectStore
from spark.storage.scan import GROUP, KeyRange

from .filters import LAST, Span
from .kinds import Listed

#: How many pieces a prefix of more than a page is cut into.
PIECES = 32
#: Objects that one task reads at least, if they were listed already.
KEYS_PER_TASK = 250
#: LISTs of one key that look for the last one.
PROBES = 40
_BEFORE_PARTITIONS = chr(ord(PARTITION) - 1)
#: Characters of a name that are told apart.
_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Split:
    """Objects that are known, and ranges that have to be listed."""

    listed: tuple[Listed, ...] = ()
    ranges: tuple[KeyRange, ...] = ()


def split(store: ObjectStore, span: Span, pieces: int = PIECES) -> Split:
    """A span as objects and ranges, which together are all of it, each object once."""
    if span.first or span.last:
        return _split_leaf(store, KeyRange(span.prefix, before(span.first), span.last), (), pieces)
    listed: list[Listed] = []
    ranges: list[KeyRange] = []
    waiting = [span.prefix]
    while waiting:
        here = waiting.pop()
        page = store.list(here, delimiter="/")
        groups = [group for group in page.prefixes if GROUP.fullmatch(group.removeprefix(here))]
        held = [group for group in page.prefixes if group.startswith(here + PARTITION)]
        if not page.objects and not page.next_after and len(groups) + len(held) == len(page.prefixes):
            waiting += groups
            leaves = [KeyRange(here + PARTITION)] if held else []
        elif held:
            # Names of partitions are unlike those of messages: cut together, one of the two would stay whole.
            leaves = [
                KeyRange(here, "", f"{here}{_BEFORE_PARTITIONS}{LAST}"),
                KeyRange(here + PARTITION),
                KeyRange(here, f"{here}{PARTITION}{LAST}"),
            ]
        else:
            leaves = [KeyRange(here)]
        # Nothing is grouped, so this is a page as any other.
        is_page = bool(page.objects) and not page.prefixes
        known = tuple(map(Listed.of, page.objects)) if is_page else ()
        if is_page and page.next_after is None:
            listed += known
            continue
        for leaf in leaves:
            part = _split_leaf(store, leaf, known, pieces)
            listed += part.listed
            ranges += part.ranges
    return Split(tuple(listed), tuple(ranges))


def before(key: str) -> str:
    """A place in the order of keys right before this one: a LIST begins behind what it is given."""
    if not key:
        return ""
    code = ord(key[-1]) - 1
    return f"{key[:-1]}{chr(code)}{LAST}" if code > 0x20 and not 0xD800 <= code <= 0xDFFF else key[:-1]


def _split_leaf(store: ObjectStore, keys: KeyRange, known: tuple[Listed, ...], pieces: int) -> Split:
    """`known`: the first page, if it was listed already, and there is more behind it."""
    if not known:
        page = store.list(keys.prefix, after=keys.after)
        known = tuple(Listed.of(entry) for entry in page.objects if not keys.until or entry.key <= keys.until)
        if page.next_after is None or len(known) < len(page.objects):
            return Split(known)
    rest = KeyRange(keys.prefix, known[-1].key, keys.until)
    space = _Space(keys.prefix, [entry.key for entry in known])
    last = space.number(keys.until) if keys.until else _last(store, rest, space, known[0].key)
    first = space.number(rest.after)
    cuts = sorted({space.text(first + (last - first) * part // pieces) for part in range(1, pieces)})
    cuts = [cut for cut in cuts if cut > rest.after and (not rest.until or cut < rest.until)]
    starts, ends = [rest.after, *cuts], [*cuts, rest.until]
    return Split(known, tuple(KeyRange(keys.prefix, start, end) for start, end in zip(starts, ends, strict=True)))


def _last(store: ObjectStore, rest: KeyRange, space: _Space, first: str) -> int:
    """About where the last key is: no further away than a small part of the whole."""
    origin, low, high = space.number(first), space.number(rest.after), space.size - 1
    for _ in range(PROBES):
        if high - low <= max(1, (low - origin) // 16):
            break
        middle = (low + high) // 2
        found = store.list(rest.prefix, after=max(space.text(middle), rest.after), limit=1).objects
        if found:
            low = max(middle, space.number(found[0].key))
        else:
            high = middle
    return high


class _Space:
    """Names as numbers, in the same order as far as they consist of characters that were seen."""

    def __init__(self, prefix: str, keys: Sequence[str]) -> None:
        self._prefix = prefix
        letters = {letter for key in keys for letter in key.removeprefix(prefix)[:_WIDTH] if " " < letter < "\x7f"}
        self._letters = sorted(letters) or ["0"]
        self._base = len(self._letters) + 1
        self.size = int(self._base**_WIDTH)

    def number(self, key: str) -> int:
        name = key.removeprefix(self._prefix)[:_WIDTH]
        digits = [min(bisect_left(self._letters, letter), len(self._letters) - 1) + 1 for letter in name]
        number = 0
        for digit in digits + [0] * (_WIDTH - len(digits)):
            number = number * self._base + digit
        return number

    def text(self, number: int) -> str:
        digits: list[int] = []
        for _ in range(_WIDTH):
            number, digit = divmod(number, self._base)
            digits.append(digit)
        letters: list[str] = []
        for digit in reversed(digits):
            if digit == 0:
                break
            letters.append(self._letters[digit - 1])
        return self._prefix + "".join(letters)
