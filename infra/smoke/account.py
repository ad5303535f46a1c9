"""Account: where the smoke runs. AwsAccount is a profile and a region; emulator.py has the one of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
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
#: A function has a disk of its own, and nobody else a use for these mails.
VARIABLES: Mapping[str, str] = {"EMAIL_OUTBOX": "/tmp/outbox"}
CONFIG = Config(retries={"mode": "standard", "max_attempts": 5}, max_pool_connections=32)
#: CloudFormation takes minutes; a stack that takes longer than this is stuck.
CDK_SECONDS = 2400.0
#: Lambda keeps 100 executions of an account's limit unreserved, and the stack reserves some thirty.
ROOM = 150
#: What `cdk bootstrap` leaves behind, and `cdk deploy` looks at first.
BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"


class NotReady(Exception):
    """The account cannot be used; nothing was created. The text says what to do."""


class Account(Protocol):
    """What the smoke needs of a place to run in."""

    region: str
    home: Home
    observed: Observed

    @property
    def is_aws(self) -> bool: ...

    @property
    def title(self) -> str:
        """Against what it ran, for the first line of the report."""
        ...

    def client(self, service: str) -> Any:
        """A boto3 client; the same one every time."""
        ...

    def signer(self) -> botocore.session.Session:
        """Whose credentials sign for the API."""
        ...

    def function_url(self, url: str) -> str:
        """Where a function URL is served."""
        ...

    def check(self) -> Sequence[str]:
        """Options of the deployment that this account asks for. Raises NotReady."""
        ...

    def deploy(self, context: Sequence[str]) -> None:
        """Deploy every stack of the app. Raises StepFailed."""
        ...

    def destroy(self) -> None:
        """Remove every stack that was deployed. Raises StepFailed."""
        ...

    def facts(self, bucket: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment with which another program asks the same account."""
        ...


class AwsAccount:
    """The account and region behind a profile."""

    def __init__(self, profile: str, region: str, steps: Steps) -> None:
        self.profile, self.region, self.home, self.observed = profile, region, HOME, Observed()
        self._steps = steps
        self._session = boto3.session.Session(profile_name=profile, region_name=region)
        self._clients: dict[str, Any] = {}
        self._account: str | None = None

    @property
    def is_aws(self) -> bool:
        """A profile may name another server, which is then not AWS whatever it answers."""
        hosts = (urlsplit(self.client(service).meta.endpoint_url).hostname or "" for service in ("sts", "s3"))
        return all(host.endswith((".amazonaws.com", ".amazonaws.com.cn")) for host in hosts)

    @property
    def account(self) -> str:
        if self._account is None:
            self._account = str(self.client("sts").get_caller_identity()["Account"])
        return self._account

    @property
    def title(self) -> str:
        if self.is_aws:
            return f"AWS, account …{self.account[-4:]}, {self.region}"
        return f"NOT AWS, but the server {self.client('s3').meta.endpoint_url} of the profile {self.profile}"

    def client(self, service: str) -> Any:
        if service not in self._clients:
            made = self._session.client(service, config=CONFIG)  # type: ignore[call-overload]  # any service
            if service == "s3":
                self.observed.watch(made)
            self._clients[service] = made
        return self._clients[service]

    def signer(self) -> botocore.session.Session:
        return botocore.session.Session(profile=self.profile)

    def function_url(self, url: str) -> str:
        return url

    def check(self) -> Sequence[str]:
        try:
            self.client("ssm").get_parameter(Name=BOOTSTRAP)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ParameterNotFound":
                raise
            raise NotReady(
                f"the account is not bootstrapped for the CDK in {self.region}: a bucket and five roles that stay. Do "
                f'it yourself: AWS_PROFILE={self.profile} make cdk ARGS="bootstrap aws://{self.account}/{self.region}"'
            ) from None
        limits = self.client("lambda").get_account_settings()["AccountLimit"]
        return [] if limits["UnreservedConcurrentExecutions"] >= ROOM else ["reserved_concurrency=false"]

    def deploy(self, context: Sequence[str]) -> None:
        options = [word for setting in context for word in ("-c", setting)]
        # Nobody is asked again: what it creates was said before.
        self._cdk("Deploy", "deploy", "--all", "--require-approval=never", f"--output={self.home.cdk_out}", *options)

    def destroy(self) -> None:
        self._cdk("Destroy", "destroy", "--all", "--force", f"--app={self.home.cdk_out}")

    def facts(self, bucket: str) -> tuple[list[str], dict[str, str]]:
        arguments = ["--profile", self.profile, "--region", self.region, "--bucket", bucket]
        return arguments, dict(os.environ)

    def _cdk(self, title: str, *arguments: str) -> None:
        with self._steps.step(title) as step:
            run(
                step,
                [*toolchain.cdk(self._steps), *arguments, "--no-notices", "--progress=events"],
                log=self.home.cdk_log,
                environment=self.environment(os.environ),
                cwd=ROOT,
                timeout=CDK_SECONDS,
            )

    def environment(self, shell: Mapping[str, str]) -> dict[str, str]:
        """The CLI's: the shell's, without what its handlers would read there, say a mail server."""
        kept = {name: value for name, value in shell.items() if name not in read_by_handlers()}
        chosen = {"AWS_PROFILE": self.profile, "AWS_REGION": self.region, "AWS_DEFAULT_REGION": self.region, "CI": "1"}
        # Keys in the shell would win over the profile that was chosen.
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            kept.pop(name, None)
        return kept | runs_the_app(kept) | chosen | dict(VARIABLES)
