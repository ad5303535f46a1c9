"""PySpark: the driver that runs heavy messages, and the pipeline over their history.

Here lies what is started: `drain.py` (a run of heavy messages), `pipeline.py` (any of the four jobs below, by name),
`archive.py`, `statistics.py`, `bulk_enqueue.py`, `replay.py`; and `datasource.py`, which a notebook registers. Rooms:

    jobs      the heavy queues' jobs, one module each
    heavy     a run: its driver, and messages one by one or as batches
    history   the archive's rows, and what statistics count
    bulk      how many batches are enqueued once, and what is rejected
    source    the data source: filters, pieces, streams
    datasets  NDJSON, CSV and Parquet: read, filtered, written
    rows      records, messages and dead letters as rows, and schemas
    storage   the bucket, listed and read by the executors
    runtime   a session, its Java, its Python workers

Nothing here reads S3 through Hadoop: bytes go through Python in the executors, so that the same code runs on EMR
Serverless and on `local[*]` against an emulator.
"""
