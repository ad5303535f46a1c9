"""`like` patterns as regular expressions whose cost is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Characters of a `like` pattern.
LONGEST_PATTERN = 200


class BadExpression(ValueError):
    """It is not in the language; the text says what, and where."""


def like_as_regex(pattern: str) -> str:
    """A `like` pattern as a regular expression that never backtracks beyond the piece that it is looking for.

    Spark's own `like` makes `.*` of each `%`, and a dozen of them over a short text take for ever. Here each piece
    between two `%` is an atomic group, found where it first occurs and not looked for again: later occurrences cannot
    help what follows. Java and Python read it alike.

    Raises:
        BadExpression: it is too long, or escapes something that needs no escape.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise BadExpression(f"a like pattern has at most {LONGEST_PATTERN} characters")
    first, *others = _pieces(pattern)
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    # The last piece has one length and one place. `(?!.)` is the very end, which Java and Python spell differently.
    last = f".*{others[-1]}" if others else ""
    return rf"(?s)\A{first}{middle}{last}(?!.)"


def _pieces(pattern: str) -> Iterator[str]:
    """What stands between the `%`, as regular expressions."""
    piece, characters = "", iter(pattern)
    for character in characters:
        if character == "%":
            yield piece
            piece = ""
            continue
        if character == "\\":
            character = next(characters, "")
            if character not in ("%", "_", "\\"):
                raise BadExpression(r"in a like pattern \ stands before %, _ or \ only")
            piece += f"\\{character}"
        elif character == "_":
            piece += "."
        else:
            piece += re.escape(character)
    yield piece
