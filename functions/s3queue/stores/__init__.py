"""The stores behind the port: `memory`, a dict that is no stronger than S3, and `s3`, boto3."""
