"""The CDK app: `cdk synth`, `cdk deploy`, `cdk destroy`. infra/options.py lists what `-c name=value` can change."""

from __future__ import annotations

import os
from collections.abc import Iterable

from aws_cdk import Annotations, App, Tags, Validations
from cdk_nag import AwsSolutionsChecks

import queues

from . import LOCAL_APPLICATION
from .acknowledgements import acknowledge
from .constructs.functions import SERVICE
from .constructs.spark_runs import SparkCode, SparkStack
from .options import Options
from .packaging.lambda_zip import interpreter, package
from .packaging.platforms import Platform
from .queue_stack import Definition, QueueStack


def build(app: App) -> QueueStack:
    """Every stack of the app. `-c stack=name` deploys a second installation next to the first."""
    options = Options.from_context(app.node)
    defined = queues.load(also=["smoke"] if options.smoke_queue else [])
    built_for = Platform.of(options.target)
    name = app.node.try_get_context("stack") or SERVICE
    spark = _spark(app, name, options, defined.values())
    stack = QueueStack(
        app,
        name,
        description="s3queue: a message queue whose only server is an S3 bucket",
        queues=defined,
        environment={one: _from_here(_read_by(one, name, options)) for one in defined},
        secrets={one: queues.secrets(one, name) for one in defined},
        code=package(built_for),
        options=options,
        spark_application=_application(spark, options),
        spark_code=SparkCode.build(options) if spark or options.target == "local" else None,
    )
    if spark:
        stack.add_stack_dependency(spark)
    Tags.of(stack).add("application", SERVICE)
    if interpreter(built_for) is None:
        Annotations.of(stack).add_warning_v2(
            "s3queue:no-bytecode",
            "The zip has no bytecode, because this machine has no Python {}.{}: every cold start takes about a second "
            "longer. Install it, or synthesize where it is.".format(*built_for.python),
        )
    if options.target == "aws":
        _say_what_this_shell_changes(stack, defined)
    acknowledge(stack)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return stack


def _spark(app: App, name: str, options: Options, defined: Iterable[Definition]) -> SparkStack | None:
    """The application's stack, if anything runs on Spark; an emulator's application runs beside it."""
    is_needed = options.schedule_pipeline or any(definition.settings.uses_spark for definition in defined)
    if options.target == "local" or not is_needed:
        return None
    stack = SparkStack(app, f"{name}-spark", description="s3queue: the EMR Serverless application of its Spark runs")
    Tags.of(stack).add("application", SERVICE)
    return stack


def _application(spark: SparkStack | None, options: Options) -> str:
    if spark:
        return spark.application_id
    return LOCAL_APPLICATION if options.target == "local" else ""


def _read_by(queue: str, stack: str, options: Options) -> tuple[str, ...]:
    """The variables that a function is given. Secrets are among them only where nobody else can see the function."""
    names = queues.environment(queue)
    return (*names, *queues.secrets(queue, stack)) if options.target == "local" else names


def _say_what_this_shell_changes(stack: QueueStack, defined: Iterable[str]) -> None:
    """A deployment sets what its shell has, and removes what it has not, although another shell may have set it."""
    for queue in defined:
        said = Annotations.of(stack.queues[queue])
        if unset := [name for name in queues.environment(queue) if name not in os.environ]:
            said.add_warning_v2(
                f"s3queue:unset-{queue}",
                f"{queue}: {', '.join(unset)} not set in this shell, so the function will not have them, even if an "
                "earlier deployment set them. Set what the handler needs, then deploy.",
            )
        for name, reference in queues.secrets(queue, stack.stack_name).items():
            if name in os.environ:
                said.add_warning_v2(
                    f"s3queue:not-deployed-{name}",
                    f"{queue}: {name} is set in this shell, and not deployed: the handler reads {reference}. Put it "
                    f"there: {queues.Reference.parse(reference).way_out}",
                )


def _from_here(names: Iterable[str]) -> dict[str, str]:
    """What a handler reads is set where the deployment is started: a shell, a CI job, `make up`."""
    return {name: os.environ[name] for name in names if name in os.environ}


def main() -> None:
    app = App()
    build(app)
    app.synth()


if __name__ == "__main__":
    main()
