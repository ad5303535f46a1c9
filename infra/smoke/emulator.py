"""Emulator: MiniStack and the local EMR Serverless behind a profile, so that the smoke can be tried without an account.

All that differs from an account is here: where it is, that it is empty at first, and what it lacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import botocore.session

from infra.local.application import for_this_machine
from infra.local.cdk import Cdk
from infra.local.home import Home
from infra.local.ministack import gaps
from infra.local.ministack.server import REGION, Server, start
from infra.local.stack import LocalStack, emr_serverless
from infra.local.steps import Steps

from .account import HOME, Account

PROFILE = "emulator"


@contextmanager
def emulator(steps: Steps, home: Home = HOME) -> Iterator[Account]:
    """A server of its own, with IAM enforced, bootstrapped; ended afterwards."""
    server = start(home, steps, auth=True)
    try:
        local = LocalStack(server, Cdk(home, steps, variables={}))
        # An account that somebody uses has been bootstrapped; this one is new every time.
        local.cdk.bootstrap(server.state)
        with ExitStack() as ending:
            yield Emulator(local, steps, ending)
    finally:
        server.stop()


class Emulator(Account):
    """An account as a profile of this machine describes it."""

    title = "NOT AWS, but the emulator of this machine (MiniStack, and spark-submit for EMR Serverless)"

    def __init__(self, local: LocalStack, steps: Steps, ending: ExitStack) -> None:
        home = local.server.home
        self._local, self._ending = local, ending
        self._config = _write_profile(local.server)
        session = botocore.session.Session(profile=PROFILE)
        session.set_config_variable("config_file", self._config)
        session.set_config_variable("credentials_file", os.devnull)
        # Also where a shell has another one.
        session.set_config_variable("ca_bundle", local.state.certificate)
        super().__init__(session, REGION, steps, home)
        self.variables = for_this_machine(home)

    def client(self, service: str) -> Any:
        # Told everything: what a shell says of endpoints and certificates would win over the profile.
        if service not in self._clients and service == "s3":
            self.observed.watch(self._local.client(service))
        return self._clients.setdefault(service, self._local.client(service))

    def function_url(self, url: str) -> str:
        # Its name says where AWS would serve it; the emulator serves it below its own address.
        return f"{self._local.state.endpoint}/_aws/lambda-url/{urlsplit(url).netloc.partition('.')[0]}/"

    def check(self) -> Sequence[str]:
        # A key of one's own is rehearsed, too: here it costs nothing.
        key = self.client("kms").create_key(Description="s3queue: a rehearsal")["KeyMetadata"]["Arn"]
        return [*super().check(), f"kms_key={key}"]

    def deploy(self, context: Sequence[str]) -> None:
        super().deploy(["target=local", *context])
        gaps.fill(self._local.cdk.stacks(), self.client)
        self._ending.enter_context(emr_serverless(self._local))

    def environment(self, shell: Mapping[str, str]) -> dict[str, str]:
        # Nothing of the shell's, so that whatever is started cannot reach the account that it is logged in to.
        foreign = {name: value for name, value in shell.items() if not name.startswith(("AWS_", "CDK_"))}
        state = self._local.state
        return super().environment(foreign) | {
            "AWS_CONFIG_FILE": self._config,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": state.endpoint,
            "AWS_CA_BUNDLE": state.certificate,
            "NODE_EXTRA_CA_CERTS": state.certificate,
            "NO_PROXY": "127.0.0.1,localhost",
        }


def _write_profile(server: Server) -> str:
    """As `~/.aws/config` would have it."""
    state, file = server.state, server.home.path / "aws-config"
    # It holds the secret: nobody else on this machine may read it, not even for a moment.
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(
        f"[profile {PROFILE}]\n"
        f"region = {REGION}\n"
        f"aws_access_key_id = {state.key}\n"
        f"aws_secret_access_key = {state.secret}\n"
        f"ca_bundle = {state.certificate}\n"
        f"endpoint_url = {state.endpoint}\n"
        f"services = {PROFILE}\n"
        f"[services {PROFILE}]\n"
        f"emr_serverless =\n  endpoint_url = {state.emr_endpoint}\n"
    )
    return str(file)
