"""What tests read in a log is the same whether PySpark has logged in their process or not."""

from __future__ import annotations

from pyspark.logger import PySparkLogger


def test_no_logger_of_pyspark_changes_the_lines_that_a_test_reads(caplog):
    logger = PySparkLogger.getLogger("s3queue tests")
    logger.addHandler(caplog.handler)  # as pytest does for a logger that does not propagate
    try:
        logger.propagate = False
        logger.warning('no "handler" here')
    finally:
        logger.removeHandler(caplog.handler)

    assert [record.message for record in caplog.records] == ['no "handler" here']
    assert 'no "handler" here' in caplog.text
