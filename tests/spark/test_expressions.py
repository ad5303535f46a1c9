"""The filter language: what it says, and what it refuses. Only the last tests need Spark."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.datasets.expressions import BadExpression, Node, like_as_regex, parse, to_column


def test_what_binds_tighter():
    assert parse("a = 1 or b = 2 and not c").kind == "or"
    assert parse("a + b * 2").parts[1].kind == "*"
    assert parse("(a + b) * 2").kind == "*"
    assert parse("not a = 1").parts[0].kind == "="
    assert parse("-a < 2").parts[0].kind == "negative"


def test_values():
    assert [part.value for part in parse("a in (1, 2.5, 'it''s', true, null, date '2026-11-16')").parts[1:4]] == [
        1,
        2.5,
        "it's",
    ]
    assert parse("1e3").value == 1000.0
    assert str(parse("date '2026-11-16'").value) == "2026-11-16"
    assert parse("`odd name`.x") == Node("column", ("odd name", "x"))
    assert list(parse("lower(a) like 'x%' and b.c is not null").columns()) == ["a", "b"]
    # Names that are words of the language elsewhere.
    assert parse("date > 3").parts[0] == Node("column", ("date",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a >", "ends where"),
        ("a = 1; drop table x", "';'"),
        ("a = (select 1)", "'1'"),
        ("reflect('java.lang.Runtime', 'exec')", "no function 'reflect'"),
        ("java_method('java.lang.System', 'exit', 1)", "no function"),
        ("input_file_name() = ''", "no function"),
        ("exists(x -> true)", "no function"),
        ("a = 1 -- comment", "'--'"),
        ("a = 1 /* x */", "'\\*'"),
        ("a like b", "like needs a 'text'"),
        ("a in ()", "must name at least one value"),
        ("a not 3", "in, between or like"),
        ("abs(1, 2)", "abs takes 1"),
        ("${x} = 1", "'\\$'"),
        ('a = "x"', "'\"'"),
        ("date '2026-13-01' = a", "is no date"),
        ("(" * 60 + "a" + ")" * 60, "nested"),
        ("abs(" * 60 + "a" + ")" * 60, "nested"),
        (" + ".join("a" * 60), "operators in a row"),
        ("(" * 10 + "a" + " * a * a * a * a * a)" * 10 + " = 1", "operators in a row"),
        (" or ".join("a" * 501), "1001 names, values and signs; at most 1000"),
        (f"a = {'1' * 3990}", "is too large"),
        (f"a = {'1' * 3990}.5", "is too large"),
        (f"a = {2**63}", f"the number {2**63} is too large"),
        ("a < 1e400", "the number 1e400 is too large"),
        (f"a like '{'%e' * 101}'", "at most 200 characters"),
        (r"a like 'a\b'", "before %, _ or"),
        ("a like 'a\\'", "before %, _ or"),
        ("a = 'unclosed", "unexpected"),
        ("a @> 1", "'@'"),
    ],
)
def test_what_is_refused(text, reason):
    with pytest.raises(BadExpression, match=reason):
        parse(text)


def liked(text: str, pattern: str) -> bool:
    """`like` by its definition: `%` is any text, `_` any character, `\\` takes the meaning from what follows."""
    cells = {0}
    characters = iter(pattern)
    for character in characters:
        is_plain = character == "\\"
        wanted = next(characters) if is_plain else character
        if wanted == "%" and not is_plain:
            cells = set(range(min(cells), len(text) + 1)) if cells else set()
            continue
        is_any = wanted == "_" and not is_plain
        cells = {at + 1 for at in cells if at < len(text) and (is_any or text[at] == wanted)}
    return len(text) in cells


TEXTS = st.text("ab%_\\.*\n(ü😀", max_size=12)
PATTERNS = st.lists(st.sampled_from([*"ab%%%__.*\n(ü😀", r"\%", r"\_", r"\\"]), max_size=10).map("".join)


@given(TEXTS, PATTERNS)
@settings(max_examples=2000, deadline=None)
def test_like_means_what_it_says(text, pattern):
    assert bool(re.match(like_as_regex(pattern), text)) == liked(text, pattern)


def test_java_reads_a_like_pattern_as_python_does(spark):
    chance = random.Random(17)
    alphabet = [*"ab%%%__.*\n(ü😀", r"\%", r"\_", r"\\"]
    texts = ["".join(chance.choices("ab%_\\.*\n(ü😀", k=chance.randrange(9))) for _ in range(300)]
    patterns = ["".join(chance.choices(alphabet, k=chance.randrange(9))) for _ in range(60)]
    frame = spark.createDataFrame([(text,) for text in texts], "t string")
    like = [to_column(Node("like", None, (Node("column", ("t",)), Node("literal", one)))) for one in patterns]

    found = frame.select("t", *(column.alias(f"p{n}") for n, column in enumerate(like))).collect()

    wrong = [
        (row.t, pattern) for row in found for n, pattern in enumerate(patterns) if row[f"p{n}"] != liked(row.t, pattern)
    ]
    assert len(found) == 300
    assert not wrong


@pytest.mark.timeout(60)
def test_no_pattern_keeps_spark_busy(spark):
    # 14 of these over 112 characters never ended.
    texts = [("e" * 112 + "!",), ("e" * 100_000 + "!",), ("ab" * 50_000,)]
    frame = spark.createDataFrame(texts, "t string")
    patterns = [
        "%e" * 14,
        "%e" * 100,
        "%" + "e" * 150 + "x%",
        "%_e" * 60 + "x",
        "%" + "_" * 190 + "x",
        "%a%b" * 40 + "c",
    ]
    like = [to_column(parse(f"t like '{pattern}'")) for pattern in patterns]

    started = time.monotonic()
    found = frame.select(*like).collect()

    assert not any(value for row in found for value in row)
    assert time.monotonic() - started < 30


def test_the_largest_filters_are_computed(spark):
    frame = spark.createDataFrame([(1, "x"), (2, "y")], "n int, t string")
    largest = [
        " or ".join(f"n={n}" for n in range(1, 250)),
        f"n in ({','.join(map(str, range(1, 490)))})",
        f"n {'+ 1 ' * 48} > 0",
        "(" * 49 + "n = 1" + ")" * 49 + f" or n < {2**63 - 1}",
        "coalesce(" * 47 + "n" + ")" * 47 + " > 0",
    ]
    for text in largest:
        assert frame.where(to_column(parse(text))).count() == 2, text[:50]


def test_spark_computes_what_it_says(spark):
    rows = [(1, "Anna", None, (5,)), (2, "bob", 3.5, (6,)), (3, "Al", -1.0, (7,))]
    frame = spark.createDataFrame(rows, "n int, name string, `odd name` double, s struct<x: int>")
    filters = {
        "n > 1": [2, 3],
        "lower(name) like 'a%'": [1, 3],
        "`odd name` is null or `odd name` < 0": [1, 3],
        "n in (1, 2) and not name = 'bob'": [1],
        "n between 2 and 3 and length(name) = 2": [3],
        "s.x - n = 4 and n * 2 % 4 = 2 and n != 3": [1],
        "coalesce(`odd name`, -n / 1) = -1": [1, 3],
        "not (n = 1 or startswith(name, 'A'))": [2],
        "true": [1, 2, 3],
    }
    found = {text: sorted(row.n for row in frame.where(to_column(parse(text))).collect()) for text in filters}
    assert found == filters
