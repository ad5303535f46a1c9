"""The filter language: what it says, and what it refuses. Only the last test needs Spark."""

from __future__ import annotations

import pytest

from spark.datasets.expressions import BadExpression, Node, parse, to_column


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
        ("a in ()", "names nothing"),
        ("a not 3", "in, between or like"),
        ("abs(1, 2)", "abs takes 1"),
        ("${x} = 1", "'\\$'"),
        ('a = "x"', "'\"'"),
        ("date '2026-13-01' = a", "is no date"),
        ("(" * 60 + "a" + ")" * 60, "nested"),
        ("a = 'unclosed", "unexpected"),
        ("a @> 1", "'@'"),
    ],
)
def test_what_is_refused(text, reason):
    with pytest.raises(BadExpression, match=reason):
        parse(text)


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
