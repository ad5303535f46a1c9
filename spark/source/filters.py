"""Filters: which keys can hold the rows that are asked for, by options of the frame or by a query.

Only what a key tells is used: `path`, `record_key`, and of the archive `day`. A query's filters are evaluated once more
by Spark, those of the options by whoever reads: so what is kept here may be too much, never too little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from s3queue.errors import InvalidRequest
from s3queue.paths import PARTITION, partition_of

#: Behind every key that begins as it does.
LAST = "\U0010ffff"
_JOURNALS = f"messages/{PARTITION}"
#: Every path of a message begins with `delayed/` or `messages/`.
_SINGLE = "d"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a text column may be: one of `among`, and from `lowest` to `highest`, both included; empty: no bound."""

    among: frozenset[str] | None = None
    lowest: str = ""
    highest: str = ""
    prefix: str = ""

    def allows(self, text: str) -> bool:
        if self.among is not None and text not in self.among:
            return False
        return text >= self.lowest and (not self.highest or text <= self.highest) and text.startswith(self.prefix)

    def exact(self) -> list[str] | None:
        return sorted(filter(self.allows, self.among)) if self.among is not None else None

    def narrowed(self, found: Filter) -> Bounds:
        value: Any = getattr(found, "value", None)
        if isinstance(found, (EqualTo, EqualNullSafe)) and isinstance(value, str):
            return self._within({value})
        if isinstance(found, In):
            return self._within({each for each in value if isinstance(each, str)})
        if not isinstance(value, str):
            return self
        if isinstance(found, (GreaterThan, GreaterThanOrEqual)):
            return replace(self, lowest=max(self.lowest, value))
        if isinstance(found, (LessThan, LessThanOrEqual)):
            return replace(self, highest=min(self.highest or value, value))
        if isinstance(found, StringStartsWith):
            if not value.startswith(self.prefix):
                # One of the two contains the other, or nothing begins with both.
                return self if self.prefix.startswith(value) else self._within(set())
            return replace(self, prefix=value)
        return self

    def _within(self, values: set[str]) -> Bounds:
        return replace(self, among=frozenset(values) if self.among is None else self.among & values)

    def span(self) -> tuple[str, str]:
        """The texts from the first to the second can be meant, and no others; the second may be empty: no bound."""
        ends = [end for end in (self.highest, self.prefix + LAST if self.prefix else "") if end]
        return max(self.lowest, self.prefix), min(ends, default="")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The bounds of every column that helps."""

    columns: dict[str, Bounds] = field(default_factory=dict)

    @classmethod
    def by(cls, filters: Iterable[Filter], known: Wanted | None = None) -> Wanted:
        """What is wanted by these filters, and by what is known already."""
        columns: dict[str, Bounds] = dict(known.columns) if known else {}
        for found in filters:
            attribute: tuple[str, ...] = getattr(found, "attribute", ())
            if len(attribute) == 1:
                (name,) = attribute
                columns[name] = columns.get(name, Bounds()).narrowed(found)
        return cls(columns)

    @classmethod
    def named(cls, options: Mapping[str, str], kind: str) -> Wanted:
        """What the options of a frame ask for.

        Raises:
            InvalidRequest: one of them is not for this kind.
        """
        column, other = ("day", "path") if kind == "archive" else ("path", "day")
        wrong = [name for name in _options(other) if name in options]
        if wrong:
            raise InvalidRequest(f"option {wrong[0]} is not for {kind}: use {', '.join(_options(column))}")
        among = options.get(column)
        bounds = Bounds(
            among=None if among is None else frozenset({among}),
            lowest=options.get(f"{column}_from", ""),
            highest=options.get(f"{column}_to", ""),
            prefix=options.get(f"{column}_prefix", ""),
        )
        return cls({} if bounds == Bounds() else {column: bounds})

    def of(self, column: str) -> Bounds:
        return self.columns.get(column, Bounds())


def _options(column: str) -> list[str]:
    return [column, *(f"{column}_{end}" for end in ("from", "to", "prefix"))]


@dataclass(frozen=True, slots=True)
class Span:
    """Keys of one prefix, from the first to the last, both included; empty: no bound."""

    prefix: str
    first: str = ""
    last: str = ""

    def is_empty(self) -> bool:
        return bool(self.last) and self.last < max(self.first, self.prefix)

    def has(self, key: str) -> bool:
        return key.startswith(self.prefix) and key >= self.first and (not self.last or key <= self.last)


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows can be: these keys, and these spans."""

    keys: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()

    def has(self, key: str) -> bool:
        return key in self.keys or any(span.has(key) for span in self.spans)


def places(kind: str, prefixes: Iterable[str], wanted: Wanted) -> Places:
    """Which keys of a kind can hold what is wanted. `prefixes` are those of the kind's keys, with the queue's name."""
    path, record_key = wanted.of("path"), wanted.of("record_key")
    keys: set[str] = set()
    spans: list[Span] = []
    for prefix in prefixes:
        # A message lies at its path; a record or dead letter has the path behind its prefix.
        root = prefix.rpartition("/")[0].rpartition("/")[0] + "/" if kind == "messages" else prefix
        exact = path.exact()
        if exact is not None:
            singles = [each for each in exact if not (kind == "records" and partition_of(each))]
            keys |= {root + each for each in singles if (root + each).startswith(prefix)}
            journals = {partition_of(each) for each in exact} - {""} if kind == "records" else set()
            spans += [Span(f"{prefix}{partition}/") for partition in sorted(journals)]
            continue
        first, last = path.span()
        if kind == "records" and (first or last):
            spans += _journals(prefix, path)
            # Journals lie before all others.
            first = max(first, _SINGLE)
        spans.append(Span(prefix, root + first if first else "", root + last if last else ""))
    spans = [span for span in spans if not span.is_empty()]
    if kind == "records":
        keys, spans = _by_key(keys, spans, record_key)
    return Places(tuple(sorted(keys)), tuple(dict.fromkeys(spans)))


def _journals(prefix: str, path: Bounds) -> list[Span]:
    """Journals lie beside the records of single messages, and hold the paths `messages/@…`."""
    first, last = path.span()
    if (last and last < _JOURNALS) or first > _JOURNALS + LAST:
        return []
    return [Span(prefix + PARTITION)]


def _by_key(keys: set[str], spans: list[Span], bounds: Bounds) -> tuple[set[str], list[Span]]:
    exact = bounds.exact()
    if exact is not None:
        inside = {key for key in exact if key in keys or any(span.has(key) for span in spans)}
        return inside, []
    first, last = bounds.span()
    narrowed = [
        Span(span.prefix, max(span.first, first), min(filter(None, (span.last, last)), default="")) for span in spans
    ]
    return {key for key in keys if bounds.allows(key)}, [span for span in narrowed if not span.is_empty()]
