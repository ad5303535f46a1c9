"""S3Queues: the queues of somebody's own application, in one statement of their CDK app."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from constructs import Construct

from s3queue.worker.application import DEFAULT, VARIABLE, Application

from .acknowledgements import acknowledge
from .options import Options
from .packaging.own_code import own_package
from .packaging.platforms import Platform
from .queue_stack import QueueStack


class S3Queues(QueueStack):
    """A stack with a bucket, and with a function, a role and an event filter for every module of a package of queues;
    a sweeper, an API, alarms and a dashboard.

        app = App()
        S3Queues(app, "shop")
        app.synth()

    It may be a part of another stack of the app (`S3Queues(self, "Queues")`): CDK then deploys it beside that one.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        package: str = DEFAULT,
        include: Sequence[str] = (),
        requirements: str | Path | None = None,
        bucket: str = "",
        options: Options | None = None,
        **stack: Any,
    ) -> None:
        """
        Args:
            package: the package whose modules define the queues, as the program imports it.
            include: other packages and modules of the project that the handlers import.
            requirements: a file of what they need from PyPI besides boto3, pydantic, Powertools and Pillow.
            bucket: the name of a bucket that exists; without one, the stack makes one. Its policy and its lifecycle
                rules stay its owner's: the output `BucketPolicy` says what belongs into the policy.
            options: what `cdk deploy -c name=value` can change otherwise.
            stack: what `aws_cdk.Stack` takes: env, stack_name, description, tags.

        Raises:
            InvalidRequest, ValueError: a module, a package or an option is wrong; the text says which.
        """
        chosen = options or Options.from_context(scope.node)
        application = Application(package)
        defined = application.load()
        if heavy := [name for name, one in defined.items() if one.settings.uses_spark]:
            raise ValueError(
                f"{', '.join(heavy)}: queues that run on Spark are deployed from s3queue's own repository, not by "
                "S3Queues; leave out engine='spark' and heavy_above"
            )
        top = package.partition(".")[0]
        wanted = Path(requirements) if requirements else None
        code = own_package(Platform.of(chosen.target), [top, *include], requirements=wanted)
        stack = {"description": "s3queue: message queues whose only server is an S3 bucket"} | stack
        super().__init__(
            scope,
            id,
            queues=defined,
            code=code,
            options=chosen,
            environment={
                name: {one: os.environ[one] for one in _read_by(application, name, id, chosen) if one in os.environ}
                for name in defined
            },
            secrets={name: application.secrets(name, id) for name in defined},
            bucket=bucket,
            **stack,
        )
        if package != DEFAULT:
            for function in self.functions():
                function.add_environment(VARIABLE, package)
        acknowledge(self)


def _read_by(application: Application, queue: str, stack: str, options: Options) -> tuple[str, ...]:
    """The variables that a function is given. Secrets are among them only where nobody else can see the function."""
    names = application.environment(queue)
    return (*names, *application.secrets(queue, stack)) if options.target == "local" else tuple(names)
