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
        environment={name: _from_here(queues.environment(name)) for name in defined},
        code=package(built_for),
        options=options,
        spark_application=_application(spark, options),
        spark_code=SparkCode.build(options) if spark or options.target == "local" else None,
    )
    if spark:
        stack.add_stack_dependency(spark)
    Tags.of(stack).add("application", SERVICE)
    if interpreter(built_for) is None:
        Annotations.of(stack).add_info(
            "The zip has no bytecode, because this machine has no Python {}.{}: every cold start takes about a second "
            "longer. Install it, or synthesize where it is.".format(*built_for.python)
        )
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


def _from_here(names: Iterable[str]) -> dict[str, str]:
    """What a handler reads is set where the deployment is started: a shell, a CI job, `make up`."""
    return {name: os.environ[name] for name in names if name in os.environ}


def main() -> None:
    app = App()
    build(app)
    app.synth()


if __name__ == "__main__":
    main()
