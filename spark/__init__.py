"""PySpark: the driver that runs heavy messages, and the pipeline over their history.

Nothing here reads S3 through Hadoop: bytes go through Python in the executors, so that the same code runs on EMR
Serverless and on `local[*]` against an emulator.
"""
