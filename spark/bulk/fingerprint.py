"""Fingerprint: which lines a bulk run has, in any order; so that a source that has become another one is noticed.

Spark counts and hashes all lines before the run is planned. Each bucket adds up the hashes of the lines that it got,
and keeps the sums in its marker: together they must be those of the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from .digest import HashSums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fingerprint(lines: DataFrame) -> tuple[int, str]:
    """How many lines, and a digest of all of them in any order."""
    first, second = _hashes()
    (row,) = lines.agg(
        sf.count("*").alias("rows"),
        sf.sum(first.cast("decimal(20,0)")).alias("sum"),
        sf.bit_xor(second).alias("xor"),
    ).collect()
    return row.rows, _digest(row.rows, f"{row['sum']} {row.xor}")


def fingerprint_of(rows: int, sums: Iterable[str]) -> str:
    """The digest of so many lines, at least one, by the sums of all their buckets."""
    together = HashSums()
    for each in sums:
        together.add_text(each)
    return _digest(rows, str(together))


def into_buckets(lines: DataFrame, buckets: int) -> DataFrame:
    """`bucket` before the columns of `lines_of`, and the hashes of the line behind them: equal lines in equal buckets,
    about as many in each.
    """
    first, second = _hashes()
    bucket = sf.pmod(first, sf.lit(buckets)).alias("bucket")
    return lines.select(bucket, "*", first.alias("first_hash"), second.alias("second_hash"))


def _hashes() -> tuple[Column, Column]:
    return sf.xxhash64("line"), sf.xxhash64("line", sf.lit(1))


def _digest(rows: int, sums: str) -> str:
    return hashlib.sha256(f"{rows} {sums}".encode()).hexdigest()[:24]
