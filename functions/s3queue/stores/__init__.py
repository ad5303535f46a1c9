"""The implementations of ObjectStore: `s3` (boto3), `direct` (our own client), and `memory` (a dict)."""
