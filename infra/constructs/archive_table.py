"""The archive in the Glue Data Catalog, so that Athena, and whatever reads the catalog, finds it by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_glue as glue
from aws_cdk import aws_s3 as s3
from constructs import Construct

from s3queue.archive.columns import TABLE_COLUMNS

TABLE = "archive"
_PRIMITIVE = {"string": "string", "long": "bigint", "integer": "int", "boolean": "boolean", "timestamp": "timestamp"}
#: As Spark and Athena write them for a Delta table. Nobody reads through them: `table_type` says that the log counts.
_INPUT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
_OUTPUT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


class ArchiveTable(Construct):
    """A database with one table. Athena's engine 3 reads it as Delta Lake: files, partitions and columns come from the
    table's own log, so that nothing here has to be brought up to date.
    """

    def __init__(self, scope: Construct, id: str, *, bucket: s3.IBucket) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        # Athena knows no hyphens without quotes.
        name = stack.stack_name.lower().replace("-", "_")
        location = f"s3://{bucket.bucket_name}/archive/"
        database = glue.CfnDatabase(
            self,
            "Database",
            catalog_id=stack.account,
            database_input=glue.CfnDatabase.DatabaseInputProperty(name=name, description="s3queue"),
        )
        self.table = glue.CfnTable(
            self,
            "Table",
            catalog_id=stack.account,
            database_name=name,
            table_input=glue.CfnTable.TableInputProperty(
                name=TABLE,
                description="Outcomes of messages, one row each; a Delta Lake table",
                table_type="EXTERNAL_TABLE",
                parameters={
                    "EXTERNAL": "TRUE",
                    # Athena's.
                    "table_type": "DELTA",
                    "classification": "delta",
                    # Spark's.
                    "spark.sql.sources.provider": "delta",
                },
                storage_descriptor=glue.CfnTable.StorageDescriptorProperty(
                    location=location,
                    # For people who look: a reader takes them from the log, also those that later versions add.
                    columns=[
                        glue.CfnTable.ColumnProperty(name=field["name"], type=hive_type(field["type"]))
                        for field in TABLE_COLUMNS["fields"]
                    ],
                    input_format=_INPUT,
                    output_format=_OUTPUT,
                    serde_info=glue.CfnTable.SerdeInfoProperty(
                        serialization_library=_SERDE, parameters={"serialization.format": "1", "path": location}
                    ),
                ),
            ),
        )
        self.table.add_dependency(database)
        CfnOutput(self, "AthenaTable", value=f"{name}.{TABLE}", description="SELECT … FROM it, with Athena engine 3")


def hive_type(kind: str | Mapping[str, Any]) -> str:
    """A column's type in the catalog's words."""
    if isinstance(kind, str):
        return _PRIMITIVE[kind]
    if kind["type"] == "array":
        return f"array<{hive_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{hive_type(kind['keyType'])},{hive_type(kind['valueType'])}>"
    fields = ",".join(f"{field['name']}:{hive_type(field['type'])}" for field in kind["fields"])
    return f"struct<{fields}>"
