"""Data frames, compared: pyspark's own comparison, loaded by the first test that compares."""

from __future__ import annotations

from typing import Any


def assertDataFrameEqual(actual: Any, expected: Any, **options: Any) -> None:  # noqa: N802 (pyspark's name)
    # Here, not above: it takes pandas-on-Spark along, seconds that every collection of the tests would pay.
    from pyspark import testing

    testing.assertDataFrameEqual(actual, expected, **options)
