"""LocalStack: the deployed stack on this machine, and everything about it that a demo or a test may want to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from s3queue.deployment import Deployment

from .. import LOCAL_APPLICATION, PROJECT
from .cdk import Cdk
from .emr.serverless import EmrServerless, deliver_to
from .home import Home, State
from .ministack import gaps
from .ministack.server import REGION, Server, find, start
from .steps import StepFailed, Steps

#: Patient enough for a machine whose cores are all busy running Lambda functions.
PATIENT = Config(retries={"mode": "standard", "max_attempts": 5}, read_timeout=120, max_pool_connections=32)


class LocalStack:
    """A running, deployed stack."""

    def __init__(self, server: Server, cdk: Cdk) -> None:
        self.server, self.cdk = server, cdk
        self._clients: dict[str, Any] = {}

    @property
    def state(self) -> State:
        return self.server.state

    def client(self, service: str) -> Any:
        """A boto3 client of the account's root user."""
        if service not in self._clients:
            self._clients[service] = self.client_as(service, self.state.key, self.state.secret)
        return self._clients[service]

    def client_as(self, service: str, key: str, secret: str, token: str | None = None) -> Any:
        """A boto3 client of somebody else."""
        return boto3.client(  # type: ignore[call-overload]  # the stubs want a literal, and any service may be asked for
            service,
            # MiniStack knows no EMR Serverless.
            endpoint_url=self.state.emr_endpoint if service == "emr-serverless" else self.state.endpoint,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            verify=self.state.certificate or None,
            config=PATIENT,
        )

    @cached_property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Name → configuration of every function in the stack."""
        pages = self.client("lambda").get_paginator("list_functions").paginate()
        return {function["FunctionName"]: function for page in pages for function in page["Functions"]}

    @cached_property
    def sweeper(self) -> str:
        """The name of the sweeper function; of several, which only many queues have, the first."""
        return min(
            name for name, function in self.functions.items() if function["Handler"].startswith("handlers.sweeper.")
        )

    @cached_property
    def deployment(self) -> Deployment:
        """Bucket and workers, as the deployed functions are told them."""
        return Deployment.from_env(dict(self._environments())[self.sweeper])

    @property
    def bucket(self) -> str:
        return self.deployment.bucket

    @property
    def workers(self) -> dict[str, str]:
        """Queue → name of its worker function."""
        return dict(self.deployment.workers)

    def deploy_if_changed(self) -> bool:
        """Bring the stack to what the working tree says; False if it already was.

        Raises:
            StepFailed: and the stack is as CloudFormation left it.
        """
        inputs = self.cdk.inputs()
        if self.state.deployed == inputs:
            return False
        if not self.state.deployed:
            self.cdk.bootstrap(self.state)
        self.cdk.deploy(self.state)
        gaps.fill(self.cdk.stacks(), self.client)
        self.server.state = self.server.home.remember(self.state, deployed=inputs)
        if self.state.keeps:
            self.server.save()
            self.server.home.keep(self.state)
        for stale in ("functions", "sweeper", "deployment"):
            self.__dict__.pop(stale, None)
        return True

    def _environments(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name, function in self.functions.items():
            yield name, function.get("Environment", {}).get("Variables", {})


def emr_serverless(stack: LocalStack) -> AbstractContextManager[EmrServerless]:
    """The stand-in for EMR Serverless, where the deployed functions look for it."""
    state = stack.state
    environment = {
        "AWS_ENDPOINT_URL": state.endpoint,
        "AWS_ACCESS_KEY_ID": state.key,
        "AWS_SECRET_ACCESS_KEY": state.secret,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        **({"AWS_CA_BUNDLE": state.certificate} if state.certificate else {}),
    }
    return EmrServerless(
        stack.server.home.emr,
        application=LOCAL_APPLICATION,
        environment=environment,
        on_change=deliver_to(stack.sweeper, stack.client("lambda")),
        port=state.emr_port,
        token=state.emr_token,
        # Where CDK puts what this stack consists of; nothing that a message can name lies there.
        assets=[f"s3://{urlsplit(stack.deployment.spark_entry_point).netloc}/"],
    )


@contextmanager
def local_stack(
    home: Home | None = None,
    *,
    auth: bool = False,
    app: Path = PROJECT,
    context: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    steps: Steps | None = None,
    keep: bool = False,
) -> Iterator[LocalStack]:
    """The stack, deployed as the working tree says; ended afterwards if it was started here.

    With `keep`, port, keys, bucket and data are those of the last one that was kept.

    `variables`: what the queues' handlers read; by default what suits this machine, and what the shell says.

    Raises:
        StepFailed: it could not be installed, started or deployed.
    """
    home, steps = home or Home(), steps or Steps()
    server: Server | None = None
    try:
        with home.locked():
            server = find(home) or start(home, steps, auth=auth, keep=keep)
            stack = LocalStack(server, Cdk(home, steps, app=app, context=context, variables=variables))
            try:
                stack.deploy_if_changed()
            except StepFailed:
                # What CloudFormation left half done is not kept: the next one begins with the last whole stack.
                server.state = replace(server.state, keeps=False)
                raise
        # A project of one's own has no queue on Spark.
        runs_spark = server.owned and stack.deployment.spark_entry_point
        with emr_serverless(stack) if runs_spark else nullcontext():
            yield stack
    finally:
        if server and server.owned:
            server.stop()
