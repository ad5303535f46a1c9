"""Account: the AWS account and region behind a profile, through boto3 and the locked CDK CLI."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from infra import ROOT
from infra.local import toolchain
from infra.local.application import read_by_handlers
from infra.local.cdk import runs_the_app
from infra.local.home import LOCAL, Home
from infra.local.steps import Steps, run

from .observed import Observed

#: Its own, beside the stacks of `make up` and `make demo`.
HOME = Home(LOCAL / "smoke")
CONFIG = Config(retries={"mode": "standard", "max_attempts": 5}, max_pool_connections=32)
#: CloudFormation takes minutes; a stack that takes longer than this is stuck.
CDK_SECONDS = 2400.0
#: Lambda keeps 100 executions of an account's limit unreserved, and the stack reserves some thirty.
ROOM = 150
#: What `cdk bootstrap` leaves behind, and `cdk deploy` looks at first.
BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"
#: In a shell they would win over the profile that was chosen.
OTHER_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class NotReady(Exception):
    """The account cannot be used; nothing was created. The text says what to do."""


class Account:
    """Whoever the session's profile is, in one region. `home` keeps the CDK's output and log."""

    #: What the handlers read: a function has a disk of its own, and nobody else a use for these mails.
    variables: Mapping[str, str] = {"EMAIL_OUTBOX": "/tmp/outbox"}

    def __init__(self, session: botocore.session.Session, region: str, steps: Steps, home: Home = HOME) -> None:
        self.session, self.region, self.home, self.observed = session, region, home, Observed()
        self.profile = str(session.profile)
        self._steps = steps
        self._boto3 = boto3.session.Session(botocore_session=session, region_name=region)
        self._clients: dict[str, Any] = {}

    @property
    def is_aws(self) -> bool:
        """A profile may name another server, which is then not AWS whatever it answers."""
        hosts = (urlsplit(self.client(service).meta.endpoint_url).hostname or "" for service in ("sts", "s3"))
        return all(host.endswith((".amazonaws.com", ".amazonaws.com.cn")) for host in hosts)

    @property
    def title(self) -> str:
        """Against what it runs, for the first line of the report."""
        if self.is_aws:
            return f"AWS, account …{self._account()[-4:]}, {self.region}"
        return f"NOT AWS, but the server {self.client('s3').meta.endpoint_url} of the profile {self.profile}"

    def client(self, service: str) -> Any:
        """A boto3 client; the same one every time. What is asked of S3 is observed."""
        if service not in self._clients:
            made = self._boto3.client(service, config=CONFIG)  # type: ignore[call-overload]  # any service
            if service == "s3":
                self.observed.watch(made)
            self._clients[service] = made
        return self._clients[service]

    def function_url(self, url: str) -> str:
        """Where a function URL is served."""
        return url

    def check(self) -> Sequence[str]:
        """The options of the deployment that this account asks for.

        Raises:
            NotReady: it is not bootstrapped, which is not done silently.
        """
        try:
            self.client("ssm").get_parameter(Name=BOOTSTRAP)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                raise
            where = f"aws://{self._account()}/{self.region}"
            raise NotReady(
                f"the account is not bootstrapped for the CDK in {self.region}. That is a bucket and five roles, which "
                f'stay; so do it yourself: AWS_PROFILE={self.profile} make cdk ARGS="bootstrap {where}"'
            ) from None
        limits = self.client("lambda").get_account_settings()["AccountLimit"]
        return [] if limits["UnreservedConcurrentExecutions"] >= ROOM else ["reserved_concurrency=false"]

    def deploy(self, context: Sequence[str]) -> None:
        """Deploy every stack of the app.

        Raises:
            StepFailed: with the CLI's last words; some of it may be there.
        """
        options = [word for setting in context for word in ("-c", setting)]
        # Nobody is asked again: what it creates was said before.
        self._cdk("Deploy", "deploy", "--all", "--require-approval=never", f"--output={self.home.cdk_out}", *options)

    def destroy(self) -> None:
        """Remove every stack that was deployed, whatever the working tree says by now.

        Raises:
            StepFailed: with the CLI's last words; something is left.
        """
        self._cdk("Destroy", "destroy", "--all", "--force", f"--app={self.home.cdk_out}")

    def environment(self, shell: Mapping[str, str]) -> dict[str, str]:
        """Of a program that acts as this profile: the shell's, without what handlers would read there."""
        kept = {name: value for name, value in shell.items() if name not in (*read_by_handlers(), *OTHER_KEYS)}
        chosen = {"AWS_PROFILE": self.profile, "AWS_REGION": self.region, "AWS_DEFAULT_REGION": self.region}
        return kept | runs_the_app(kept) | chosen | dict(self.variables)

    def _account(self) -> str:
        return str(self.client("sts").get_caller_identity()["Account"])

    def _cdk(self, title: str, *arguments: str) -> None:
        command: list[str | Path] = [*toolchain.cdk(self._steps), *arguments, "--no-notices", "--progress=events"]
        with self._steps.step(title) as step:
            run(
                step,
                command,
                log=self.home.cdk_log,
                # No colours and no spinner: it is a log.
                environment=self.environment(os.environ) | {"CI": "1"},
                cwd=ROOT,
                timeout=CDK_SECONDS,
            )
