"""An account for the smoke's tests: stacks that come and go, and nothing behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from infra.local.steps import StepFailed
from infra.smoke.observed import Observed


def refused(code: str, message: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Asked")


class SmokeAccount:
    """Remembers what was done to it, in order."""

    is_aws = True
    title = "AWS, account …1234, eu-west-1"
    region, profile = "eu-west-1", "sandbox"

    def __init__(self, folder: Path) -> None:
        self.folder, self.observed = folder, Observed()
        self.done: list[str] = []
        self.context: Sequence[str] = ()
        self.stacks: set[str] = set()
        #: Bucket → the keys in it.
        self.buckets: dict[str, list[str]] = {}
        #: Raises, if it has to.
        self.on_deploy: Callable[[], None] = lambda: None
        self.on_destroy: Callable[[], None] = lambda: None

    def check(self) -> Sequence[str]:
        return ["reserved_concurrency=false"]

    def deploy(self, context: Sequence[str]) -> None:
        self.done.append("deploy")
        self.context = context
        name = dict(setting.split("=", 1) for setting in context)["stack"]
        self.stacks = {name, f"{name}-spark"}
        self.buckets = {f"{name}-bucket": ["emails/stats.json"]}
        self.on_deploy()

    def destroy(self) -> None:
        self.done.append("destroy")
        self.on_destroy()
        if any(self.buckets.values()):
            raise self.failure("the bucket is not empty")
        self.stacks, self.buckets = set(), {}

    def failure(self, what: str) -> StepFailed:
        return StepFailed(what, log=self.folder / "cdk.log", tail="the CLI's last words")

    def environment(self, shell: dict[str, str]) -> dict[str, str]:
        return {"AWS_PROFILE": self.profile}

    def client(self, service: str) -> Any:
        return getattr(self, f"_{service.replace('-', '_')}")()

    def _cloudformation(self) -> Any:
        def describe_stacks(StackName: str) -> Any:  # noqa: N803
            if StackName not in self.stacks:
                raise refused("ValidationError", f"Stack with id {StackName} does not exist")
            return {"Stacks": [{"StackStatus": "CREATE_COMPLETE", "Outputs": []}]}

        def resources(StackName: str) -> Any:  # noqa: N803
            names = [name for name in self.buckets if name == f"{StackName}-bucket"]
            return [
                {
                    "StackResourceSummaries": [
                        {"ResourceType": "AWS::S3::Bucket", "PhysicalResourceId": name} for name in names
                    ]
                }
            ]

        def paginator(name: str) -> Any:
            assert name == "list_stack_resources"
            return SimpleNamespace(paginate=resources)

        return SimpleNamespace(describe_stacks=describe_stacks, get_paginator=paginator)

    def _s3(self) -> Any:
        def head_bucket(Bucket: str) -> Any:  # noqa: N803
            if Bucket not in self.buckets:
                raise refused("404", "Not Found", 404)
            return {}

        def delete_objects(Bucket: str, Delete: Any) -> None:  # noqa: N803
            self.done.append(f"empty {Bucket}")
            gone = {entry["Key"] for entry in Delete["Objects"]}
            self.buckets[Bucket] = [key for key in self.buckets[Bucket] if key not in gone]

        def pages(Bucket: str) -> Any:  # noqa: N803
            return [{"Contents": [{"Key": key} for key in self.buckets[Bucket]]}]

        return SimpleNamespace(
            meta=SimpleNamespace(endpoint_url="http://127.0.0.1:1"),
            head_bucket=head_bucket,
            delete_objects=delete_objects,
            get_paginator=lambda name: SimpleNamespace(paginate=pages),
            exceptions=SimpleNamespace(NoSuchBucket=KeyError),
        )

    def _lambda(self) -> Any:
        def get_function_configuration(FunctionName: str) -> Any:  # noqa: N803
            raise refused("ResourceNotFoundException", f"Function not found: {FunctionName}", 404)

        return SimpleNamespace(get_function_configuration=get_function_configuration)

    def _logs(self) -> Any:
        return SimpleNamespace(describe_log_groups=lambda logGroupNamePrefix: {"logGroups": []})  # noqa: N803

    def _emr_serverless(self) -> Any:
        return SimpleNamespace()
