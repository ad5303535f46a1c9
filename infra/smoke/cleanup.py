"""Clean-up: remove everything that the smoke made, and say what is left if that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from infra.local.steps import StepFailed

from .account import Account
from .installation import ASK_SECONDS, Failed, Installation

#: States in which EMR Serverless lets an application be deleted; CloudFormation's own delete fails in any other.
AT_REST = ("CREATED", "STOPPED", "TERMINATED")
UNDER_WAY = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "QUEUED")
STOP_SECONDS = 600.0


@dataclass
class Left:
    """What is still there, each with the command that removes it."""

    things: dict[str, str] = field(default_factory=dict)
    #: What stood in the way, as far as it is known.
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.things)


def remove(site: Installation) -> Left:
    """Remove every stack, emptying its buckets if they stand in the way; what is left. Ctrl-C gives up, and says so."""
    buckets: list[str] = []
    why: list[str] = []
    try:
        # Before they are gone: who asks later cannot tell what there was.
        buckets = list(_buckets(site))
        if standing(site) and not _is_removed(site, why):
            # The sweeper may have written into a bucket after CDK emptied it, and before its own end.
            for bucket in buckets:
                _empty(site.account, bucket)
            _is_removed(site, why)
    except KeyboardInterrupt:
        why.append("it was interrupted")
    except (ClientError, BotoCoreError) as error:
        why.append(str(error))
    found = left(site, buckets)
    found.why = "\n\n".join(why)
    return found


def _is_removed(site: Installation, why: list[str]) -> bool:
    """One try; what stood in the way is added to `why`."""
    try:
        _stop_spark(site)
    except (Failed, ClientError, BotoCoreError) as error:
        # Then one of the stacks may stay; the other one, with the buckets in it, need not.
        why.append(f"the Spark application was not stopped: {error}")
    try:
        site.account.destroy()
    except StepFailed as failed:
        why.append(f"{failed.what}\n{failed.tail}\nAll of it: {failed.log}")
        return False
    return True


def standing(site: Installation) -> dict[str, str]:
    """Stack → status, of those that are there."""
    found = {}
    for stack in site.stacks:
        try:
            (described,) = site.account.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        except ClientError as error:
            if "does not exist" not in str(error):
                raise
            continue
        if described["StackStatus"] != "DELETE_COMPLETE":
            found[stack] = described["StackStatus"]
    return found


def left(site: Installation, buckets: list[str]) -> Left:
    """What is still there; what cannot be asked for counts as left."""
    account, there = site.account, Left()
    region = f"--region {account.region}"
    try:
        for stack, status in standing(site).items():
            there.things[f"stack {stack} ({status})"] = f"aws cloudformation delete-stack --stack-name {stack} {region}"
        for bucket in buckets:
            if _is_there(account, bucket):
                there.things[f"bucket {bucket}"] = f"aws s3 rb --force s3://{bucket} {region}"
        for prefix in (f"/aws/lambda/{site.name}", f"/s3queue/{site.name}/"):
            for group in account.client("logs").describe_log_groups(logGroupNamePrefix=prefix)["logGroups"]:
                name = group["logGroupName"]
                there.things[f"log group {name}"] = f"aws logs delete-log-group --log-group-name {name} {region}"
    except (ClientError, BotoCoreError, KeyboardInterrupt) as error:
        there.things[f"whatever is called {site.name}: the account could not be asked ({type(error).__name__})"] = (
            f"aws cloudformation list-stacks {region}"
        )
    return there


def _buckets(site: Installation) -> Iterator[str]:
    for stack in standing(site):
        # Not describe_stack_resources, which ends after a hundred.
        pages = site.account.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        for resource in (resource for page in pages for resource in page["StackResourceSummaries"]):
            if resource["ResourceType"] == "AWS::S3::Bucket" and resource.get("PhysicalResourceId"):
                yield resource["PhysicalResourceId"]


def _stop_spark(site: Installation) -> None:
    """An application that still idles after its last run cannot be deleted: end its runs, and stop it."""
    emr = site.account.client("emr-serverless")
    try:
        application = site.deployment.spark_application
    except ClientError:
        # The functions were never made, so no run was started.
        return
    if not application:
        return
    runs = emr.list_job_runs(applicationId=application, states=list(UNDER_WAY))["jobRuns"]
    for run in runs:
        with contextlib.suppress(ClientError):
            emr.cancel_job_run(applicationId=application, jobRunId=run["id"])

    def is_at_rest() -> bool:
        if emr.get_application(applicationId=application)["application"]["state"] in AT_REST:
            return True
        with contextlib.suppress(ClientError):
            # Refused while a run is being cancelled.
            emr.stop_application(applicationId=application)
        return False

    site.is_stopped.clear()
    otherwise = f"the Spark application {application} does not stop"
    site.until(is_at_rest, otherwise, seconds=STOP_SECONDS, every=ASK_SECONDS)


def _empty(account: Account, bucket: str) -> None:
    s3 = account.client("s3")
    with contextlib.suppress(s3.exceptions.NoSuchBucket):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
            if keys:
                s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})


def _is_there(account: Account, bucket: str) -> bool:
    try:
        account.client("s3").head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return False
        raise
    return True
