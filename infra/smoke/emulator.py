"""Emulator: MiniStack and the local EMR Serverless as an Account, so that the smoke can be tried without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import botocore.session

from infra.local.application import for_this_machine
from infra.local.cdk import Cdk, environment
from infra.local.home import Home
from infra.local.ministack.server import REGION, start
from infra.local.stack import LocalStack, emr_serverless
from infra.local.steps import Steps

from .account import HOME
from .observed import Observed


class Emulator:
    """A server of its own, with IAM enforced: `with Emulator(steps) as account:` starts and ends it."""

    is_aws = False
    region = REGION
    title = "NOT AWS, but the emulator of this machine (MiniStack, and spark-submit for EMR Serverless)"

    def __init__(self, steps: Steps, home: Home = HOME) -> None:
        self.home, self.observed = home, Observed()
        self._steps, self._ending = steps, ExitStack()
        self._stack: LocalStack

    def __enter__(self) -> Emulator:
        server = start(self.home, self._steps, auth=True)
        self._ending.callback(server.stop)
        self._use(LocalStack(server, Cdk(self.home, self._steps, variables=for_this_machine(self.home))))
        # An account that somebody uses has been bootstrapped; this one is new every time.
        self._stack.cdk.bootstrap(server.state)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _use(self, stack: LocalStack) -> None:
        self._stack = stack
        self.observed.watch(stack.client("s3"))

    def client(self, service: str) -> Any:
        return self._stack.client(service)

    def signer(self) -> botocore.session.Session:
        session = botocore.session.Session()
        session.set_credentials(self._stack.state.key, self._stack.state.secret)
        session.set_config_variable("ca_bundle", self._stack.state.certificate)
        return session

    def function_url(self, url: str) -> str:
        # Its name says where AWS would serve it; the emulator serves it below its own address.
        return f"{self._stack.state.endpoint}/_aws/lambda-url/{urlsplit(url).netloc.partition('.')[0]}/"

    def check(self) -> Sequence[str]:
        return []

    def deploy(self, context: Sequence[str]) -> None:
        server, variables = self._stack.server, for_this_machine(self.home)
        # It is bootstrapped: only what was never deployed would be.
        server.state = self.home.remember(server.state, deployed="nothing yet")
        self._use(LocalStack(server, Cdk(self.home, self._steps, context=context, variables=variables)))
        self._stack.deploy_if_changed()
        self._ending.enter_context(emr_serverless(self._stack))

    def destroy(self) -> None:
        self._stack.cdk.destroy(self._stack.state)

    def facts(self, bucket: str) -> tuple[list[str], dict[str, str]]:
        state = self._stack.state
        trust = {"AWS_CA_BUNDLE": state.certificate} if state.certificate else {}
        return ["--region", self.region, "--bucket", bucket], environment(state) | trust
