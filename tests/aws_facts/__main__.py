"""`python -m aws_facts --bucket NAME`: ask S3 itself, and tell where it differs from what is written here.

Below `aws-facts/` of that bucket, which it leaves empty. `make aws-smoke` runs it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from .runner import FOLDER, Fact, differences, facts


def main() -> int:
    parser = argparse.ArgumentParser(prog="aws_facts", description="Ask S3 whether it does what s3.toml says.")
    parser.add_argument("--bucket", required=True, help="one that you may write to; only aws-facts/ is used")
    parser.add_argument("--profile", help="of your AWS configuration")
    parser.add_argument("--region")
    parser.add_argument("--endpoint", help="of another server that speaks S3")
    parser.add_argument("--json", action="store_true", help="one object per line")
    given = parser.parse_args()
    session = boto3.session.Session(profile_name=given.profile, region_name=given.region)
    client = session.client("s3", endpoint_url=given.endpoint)
    is_as_written = True
    try:
        for fact in facts():
            asked, found = _ask(fact, session, client, given.bucket, is_aws=given.endpoint is None)
            is_as_written = is_as_written and not found
            _tell(fact, asked, found, as_json=given.json)
    except (ClientError, BotoCoreError) as error:
        print(f"not asked to the end: {error}", file=sys.stderr)
        return 2
    finally:
        _clean(client, given.bucket)
    return 0 if is_as_written else 1


def _ask(fact: Fact, session: Any, client: Any, bucket: str, *, is_aws: bool) -> tuple[bool, list[str]]:
    """Whether it could be asked, and how the answers differ."""
    if not fact.allowed:
        return True, differences(fact, client, bucket)
    if not is_aws:
        return False, []
    statement = {"Effect": "Allow", "Action": list(fact.allowed), "Resource": f"arn:*:s3:::{bucket}/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    try:
        # A federated user may do what both the caller and the policy allow. A role may not ask for one.
        given = session.client("sts").get_federation_token(Name="aws-facts", Policy=policy)["Credentials"]
    except ClientError:
        return False, []
    limited = session.client(
        "s3",
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )
    return True, differences(fact, limited, bucket)


def _tell(fact: Fact, asked: bool, found: list[str], *, as_json: bool) -> None:
    state = "not asked" if not asked else "differs" if found else "as written"
    if as_json:
        print(json.dumps({"fact": fact.name, "state": state, "differences": found, "source": fact.source}), flush=True)
    else:
        print(f"{state:<11} {fact.name}", *(f"            {one}" for one in found), sep="\n", flush=True)


def _clean(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=FOLDER):
        for entry in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=entry["Key"])


if __name__ == "__main__":
    sys.exit(main())
