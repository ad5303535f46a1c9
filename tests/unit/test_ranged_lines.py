"""An object of lines, read in parts: every line is in exactly one of them, wherever the cuts are."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from spark.datasets.ranged import lines_from
from spark.datasets.reading import parts_of


class Bytes:
    """An object in memory that answers in pieces of a few bytes."""

    def __init__(self, body: bytes, piece: int) -> None:
        self.body, self.piece = body, piece

    def pieces(self, start):
        for at in range(start, len(self.body), self.piece):
            yield self.body[at : at + self.piece]


@given(
    some.lists(some.binary(max_size=7).map(lambda line: line.replace(b"\n", b"x")), max_size=8),
    some.booleans(),
    some.lists(some.integers(0, 60), max_size=5),
    some.integers(1, 9),
)
def test_every_line_is_in_exactly_one_part(lines, is_ended, cuts, piece):
    body = b"\n".join(lines) + (b"\n" if is_ended else b"")
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})

    parts = [b"".join(lines_from(Bytes(body, piece), start, end)) for start, end in pairwise(edges)]

    assert b"".join(parts) == body
    # Each begins at the beginning of a line.
    position = 0
    for part in parts:
        assert not part or position == 0 or body[position - 1 : position] == b"\n"
        position += len(part)


def test_parts_are_about_equal_and_the_largest_come_first():
    assert parts_of([("a", 10), ("b", 250)], 100) == [
        ("b", 166, 250, 250),
        ("b", 0, 83, 250),
        ("b", 83, 166, 250),
        ("a", 0, 10, 10),
    ]
    assert parts_of([("a", 10), ("b", 250)], None) == [("b", 0, 250, 250), ("a", 0, 10, 10)]
