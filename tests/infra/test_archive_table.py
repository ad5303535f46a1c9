"""The archive in the catalog: a table that Athena and Spark read as Delta Lake, if someone asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3queue.archive.columns import TABLE_COLUMNS
from support.spark_stack import synthesized


def test_the_archive_is_a_delta_table_of_the_catalog(tmp_path: Path) -> None:
    template = synthesized(tmp_path, athena=True)
    (database,) = template.of_type("AWS::Glue::Database").values()
    (table,) = template.of_type("AWS::Glue::Table").values()
    described = table["TableInput"]
    assert table["DatabaseName"] == database["DatabaseInput"]["Name"] == "s3queue"
    assert (described["Name"], described["TableType"]) == ("archive", "EXTERNAL_TABLE")
    # By the first Athena knows that it is Delta Lake, by the second Spark does.
    assert described["Parameters"]["table_type"] == "DELTA"
    assert described["Parameters"]["spark.sql.sources.provider"] == "delta"
    bucket = template.queue_bucket.rpartition(":")[2]
    storage = described["StorageDescriptor"]
    assert storage["Location"] == storage["SerdeInfo"]["Parameters"]["path"] == f"s3://{bucket}/archive/"
    # What the log says wins: partitions are not kept here, or someone would have to add each day.
    assert "PartitionKeys" not in described
    columns = {column["Name"]: column["Type"] for column in storage["Columns"]}
    assert list(columns) == [field["name"] for field in TABLE_COLUMNS["fields"]]
    assert columns["queue"] == "string"
    assert columns["dead_by_type"] == "map<string,bigint>"
    assert columns["attempts"].startswith("array<struct<number:bigint,worker:string,started_at:timestamp,")
    assert template.output("AthenaTable") == "s3queue.archive"


def test_there_is_none_unless_someone_asks_and_none_in_an_emulator(tmp_path: Path) -> None:
    from aws_cdk import App

    from infra.options import Options

    assert not synthesized(tmp_path).of_type("AWS::Glue::Table")
    with pytest.raises(ValueError, match="athena=true: an emulator has no Athena"):
        Options.from_context(App(context={"athena": "true", "target": "local"}).node)
