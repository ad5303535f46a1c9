"""Where S3 is and who we are, as boto3 would find it: from the environment if it says so, otherwise from boto3."""

from __future__ import annotations

import os
from collections.abc import Callable

from s3queue.errors import AccessDenied, Unavailable
from s3queue.settings import aws_region

from .s3_errors import LOG_IN
from .signature import Credentials


def find_place(endpoint_url: str | None, region: str | None) -> tuple[str, str]:
    """Address and region, as boto3 would find them; boto3 itself is used only if the environment does not name them."""
    known = os.environ
    region = region or aws_region()
    if not endpoint_url and known.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint_url = known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL")
    if region and endpoint_url:
        return endpoint_url, region
    # A configuration file may name another address; other partitions, FIPS and dual-stack have their own.
    is_usual = not (known.keys() & {"AWS_PROFILE", "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT"})
    is_usual &= not os.path.isfile(os.path.expanduser(known.get("AWS_CONFIG_FILE", "~/.aws/config")))
    if region and is_usual and not region.startswith(("cn-", "us-iso", "eu-iso", "eusc-", "aws-")):
        return f"https://s3.{region}.amazonaws.com", region
    import boto3
    from botocore.config import Config

    # Where boto3 would send a request is known for sure only from one: this is signed with nothing, and never sent.
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    found = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="-",
        aws_secret_access_key="-",
        config=config,
    )
    url = found.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    return url.partition("/bucket/key")[0], found.meta.region_name


def find_credentials() -> Callable[[], Credentials]:
    """A function that returns the current credentials: the environment's, or those that boto3 finds and renews."""
    known = os.environ
    if "AWS_PROFILE" not in known and known.get("AWS_ACCESS_KEY_ID") and known.get("AWS_SECRET_ACCESS_KEY"):
        # A Lambda function's credentials do not change while it runs.
        fixed = Credentials(known["AWS_ACCESS_KEY_ID"], known["AWS_SECRET_ACCESS_KEY"], known.get("AWS_SESSION_TOKEN"))
        return lambda: fixed
    import boto3
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )

    session = boto3.Session()

    def current() -> Credentials:
        try:
            found = session.get_credentials()
            if found is None:
                raise NoCredentialsError
            frozen = found.get_frozen_credentials()
        except (NoCredentialsError, PartialCredentialsError, SSOError, TokenRetrievalError) as error:
            raise AccessDenied(f"{error}: {LOG_IN}") from error
        except (BotoCoreError, ClientError, RuntimeError) as error:
            # The service that renews them does not answer; a RuntimeError means that they have expired.
            raise Unavailable(f"AWS credentials not renewed: {error}; try again") from error
        return Credentials(frozen.access_key or "", frozen.secret_key or "", frozen.token)

    return current
