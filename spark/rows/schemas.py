"""Schemas in Python: Spark's own parser of `a string, b bigint` needs a JVM, and executors have none."""

from __future__ import annotations

from pyspark.sql import types

_TYPES: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "double": types.DoubleType(),
    "timestamp": types.TimestampType(),
    "strings": types.ArrayType(types.StringType()),
}


def columns(**named: str | types.DataType) -> types.StructType:
    """A schema, in the order of the arguments; every column may be null."""
    return types.StructType(
        [
            types.StructField(name, _TYPES[chosen] if isinstance(chosen, str) else chosen)
            for name, chosen in named.items()
        ]
    )


def joined(*schemas: types.StructType) -> types.StructType:
    return types.StructType([field for schema in schemas for field in schema.fields])
