"""Failure groups: dead letters of one error type whose messages differ only in numbers, ids, names and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from s3queue.encoding import format_instant

#: Stands for whatever differs between two messages of one group.
PLACEHOLDER = "*"
#: The form of an empty message.
NO_MESSAGE = "(no message)"
#: A longer form is cut: what comes after it tells groups apart no more.
GROUP_CHARACTERS = 200
#: More of a text is not looked at; what is stored is no longer.
_READ_CHARACTERS = 2000
#: Paths of letters that a group names.
SAMPLES = 5
#: Words that have a digit and name a thing, not one of many.
_WORDS = frozenset({"s3", "ipv4", "ipv6", "utf8", "base64", "sha256", "sha1", "md5", "http2", "oauth2", "ec2"})
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s\"'<>)\]}]+")
# Whoever makes a handler fail may have chosen the text: an address or a key begins only where a word does, so that a
# long one is not read again from each of its characters.
_ADDRESS = re.compile(r"(?<![^\s@<>\"'(),;:=\[\]{}])[^\s@<>\"'(),;:=\[\]{}]+@[^\s@<>\"'(),;:=\[\]{}]+")
#: An apostrophe within a word opens and closes nothing.
_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\"|`[^`]*`|“[^“”]*”|«[^«»]*»)(?!\w)")
#: The whole text of a KeyError: a name, and what tells it from another.
_MISSING = re.compile(r"'[A-Za-z_ .-]{1,60}'")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
#: A key or a file: from the root, or at least two folders deep.
_KEY = re.compile(
    r"(?<![\w*/.~-])/[\w.~@%+=-]+(?:/[\w.~@%+=-]*)*"
    r"|(?:(?<![\w*/.~@%+=-])|(?<=\*[@%+=]))[\w.~@%+=-]+(?:/[\w.~@%+=*-]+){2,}/?"
)
_WORD = re.compile(r"\w+")
_HEX = re.compile(r"[0-9a-fA-F]{8,}")
#: `*-*-*`, `*.*`, `*, *`, `*: *`: one date, one number, one list, one object.
_SEVERAL = re.compile(r"(?:(?<!\S)[-+])?\*(?:[\s,;:=/.+_%-]*\*)*")


class GroupKey(NamedTuple):
    """What the failures of a group have in common."""

    error_type: str
    #: The normalised message.
    message: str


def normalise(text: str) -> str:
    """A message without what differs between two failures of one kind: numbers, ids, hexadecimal digits, UUIDs, quoted
    parts, e-mail addresses, URLs and keys are `*`. What is normalised already stays as it is.
    """
    before, text = None, " ".join(text[:_READ_CHARACTERS].split())
    # Mostly once: where a cut or a replacement makes a new pair of quotes, once more.
    for _ in range(8):
        if before == text:
            break
        before, text = text, _replaced(text)
    return text or NO_MESSAGE


def _replaced(text: str) -> str:
    if _MISSING.fullmatch(text):
        return text
    for pattern in (_URL, _ADDRESS, _QUOTED, _UUID, _KEY):
        text = pattern.sub(PLACEHOLDER, text)
    text = _WORD.sub(_without_ids, text)
    text = _SEVERAL.sub(PLACEHOLDER, text)
    return text if len(text) <= GROUP_CHARACTERS else text[: GROUP_CHARACTERS - 1].rstrip() + "…"


def _without_ids(match: re.Match[str]) -> str:
    word = match[0]
    is_id = any(character.isdigit() for character in word) or _HEX.fullmatch(word)
    return PLACEHOLDER if is_id and word.lower() not in _WORDS else word


def group_key(error_type: str, message: str) -> GroupKey:
    """The group of a failure."""
    return GroupKey(error_type, normalise(message))


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects failures by error type, by message in its normalised form, or by both; None selects all."""

    error_type: str | None = None
    message: str | None = None

    @classmethod
    def of(cls, error_type: str | None, message: str | None) -> Selection:
        """`message` may be the normalised form, as it is printed, or the text of any failure of the group."""
        return cls(error_type, None if message is None else normalise(message))

    @property
    def is_all(self) -> bool:
        return self.error_type is None and self.message is None

    def has(self, key: GroupKey) -> bool:
        return self.error_type in (None, key.error_type) and self.message in (None, key.message)

    def describe(self) -> str:
        """For an error's text."""
        said = [self.error_type] if self.error_type is not None else []
        return ": ".join([*said, *([repr(self.message)] if self.message is not None else [])])


@dataclass(slots=True, kw_only=True)
class FailureGroup:
    """The dead letters of one group, as far as they were read; a batch counts as its lines."""

    key: GroupKey
    count: int = 0
    #: How many of them an operator has acknowledged.
    acknowledged: int = 0
    #: The newest message as it is stored, and the paths of letters, newest first.
    example: str = ""
    samples: list[str] = field(default_factory=list)
    oldest_at: datetime
    newest_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "error_type": self.key.error_type,
            "message": self.key.message,
            "count": self.count,
            "acknowledged": self.acknowledged,
            "example": self.example,
            "example_path": self.samples[0] if self.samples else "",
            "samples": list(self.samples),
            "oldest_at": format_instant(self.oldest_at),
            "newest_at": format_instant(self.newest_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLetter:
    """What one dead letter adds to the groups."""

    path: str
    died_at: datetime
    #: Group → how many of its failures the letter holds, how many of them are acknowledged, and the text of one.
    parts: Mapping[GroupKey, tuple[int, int, str]]


def grouped(letters: Iterable[GroupedLetter]) -> list[FailureGroup]:
    """The groups of these letters, largest first."""
    groups: dict[GroupKey, FailureGroup] = {}
    for letter in sorted(letters, key=lambda one: one.died_at, reverse=True):
        for key, (count, acknowledged, text) in letter.parts.items():
            died_at = letter.died_at
            group = groups.setdefault(key, FailureGroup(key=key, example=text, oldest_at=died_at, newest_at=died_at))
            group.count += count
            group.acknowledged += acknowledged
            group.oldest_at = died_at
            if len(group.samples) < SAMPLES:
                group.samples.append(letter.path)
    return sorted(groups.values(), key=lambda group: (-group.count, group.key))
