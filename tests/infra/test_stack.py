"""What a deployment consists of, and what the flags change."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from s3queue.deployment import Deployment
from s3queue.settings import QueueSettings
from support.document_commands import CHOICES
from support.stack_variant import QUEUES, Synthesize, Variant


def test_every_queue_has_a_worker_of_its_own_with_its_concurrency_and_memory(stack: Variant) -> None:
    for name, queue in QUEUES.items():
        function = stack.template.function(f"s3queue-{name}")
        assert function["Handler"] == "handlers.worker.handle"
        assert function["ReservedConcurrentExecutions"] == queue.settings.concurrency
        assert function["MemorySize"] == queue.settings.memory_mib
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", ["arm64"])


def test_a_message_wakes_the_worker_of_its_queue_a_delayed_one_the_sweeper_and_no_other_put_does(
    stack: Variant,
) -> None:
    bucket = stack.bucket.removeprefix("arn:aws:s3:::")
    workers = {f"{name}/messages/": f"s3queue-{name}" for name in QUEUES}
    assert wakes(stack, bucket) == workers | {f"{name}/delayed/": "s3queue_sweeper" for name in QUEUES}


def test_the_record_of_a_failed_invocation_wakes_the_sweeper(stack: Variant) -> None:
    (destination,) = {
        config["DestinationConfig"]["OnFailure"]["Destination"].removeprefix("arn:aws:s3:::")
        for config in stack.of_type("AWS::Lambda::EventInvokeConfig")
        if "DestinationConfig" in config
    }
    assert wakes(stack, destination) == {"aws/lambda/async/": "s3queue_sweeper"}


def wakes(stack: Variant, bucket: str) -> dict[str, str]:
    """Which function wakes up when an object is created below which prefix of a bucket."""
    found = {}
    for notification in stack.of_type("Custom::S3BucketNotifications"):
        if notification["BucketName"] != bucket:
            continue
        for rule in notification["NotificationConfiguration"]["LambdaFunctionConfigurations"]:
            assert rule["Events"] == ["s3:ObjectCreated:*"]
            (prefix,) = rule["Filter"]["Key"]["FilterRules"]
            found[prefix["Value"]] = rule["LambdaFunctionArn"].rpartition(":")[2]
    return found


def test_lambda_leaves_retrying_to_the_protocol_and_keeps_throttled_events_for_hours(stack: Variant) -> None:
    configs = {config["FunctionName"]: config for config in stack.of_type("AWS::Lambda::EventInvokeConfig")}
    for name in QUEUES:
        config = configs[f"s3queue-{name}"]
        assert config["MaximumRetryAttempts"] == 0
        assert timedelta(seconds=config["MaximumEventAgeInSeconds"]) == timedelta(hours=6)
        assert config["DestinationConfig"]["OnFailure"]["Destination"]


def test_lambda_stops_every_loop_but_those_of_a_queue_that_sends(synthesize: Synthesize) -> None:
    stack = synthesize(sends_to={"emails": ("webhooks",)})
    found = {name: function["RecursiveLoop"] for name, function in stack.template.functions().items()}
    assert len(found) == len(QUEUES) + 3
    assert [name for name, setting in found.items() if setting == "Allow"] == ["s3queue-emails"]
    assert set(found.values()) == {"Allow", "Terminate"}


def test_what_infra_writes_is_what_the_functions_read(stack: Variant) -> None:
    bucket = stack.bucket.removeprefix("arn:aws:s3:::")
    for name, queue in QUEUES.items():
        environment = stack.template.function(f"s3queue-{name}")["Environment"]["Variables"]
        bus = "" if queue.settings.events == "off" else "default"
        assert Deployment.from_env(environment) == Deployment(
            bucket=bucket, queue=name, workers={name: f"s3queue-{name}"}, event_bus=bus
        )
    environment = stack.template.function("s3queue_sweeper")["Environment"]["Variables"]
    workers = {name: f"s3queue-{name}" for name in QUEUES}
    assert Deployment.from_env(environment) == Deployment(bucket=bucket, workers=workers, event_bus="default")


def test_the_functions_need_no_sdk_unless_they_are_told_to_use_it(stack: Variant, synthesize: Synthesize) -> None:
    def stores(of: Variant) -> set[str]:
        names = [*(f"s3queue-{name}" for name in QUEUES), "s3queue_sweeper"]
        return {of.template.function(name)["Environment"]["Variables"]["S3QUEUE_STORE"] for name in names}

    assert stores(stack) == {"direct"}
    assert stores(synthesize(direct_store=False)) == {"boto3"}


def test_an_invocation_outlives_the_handler_it_started(stack: Variant) -> None:
    for name, queue in QUEUES.items():
        timeout = timedelta(seconds=stack.template.function(f"s3queue-{name}")["Timeout"])
        assert timeout > queue.settings.handler_timeout


def test_the_sweeper_runs_every_minute_and_a_late_tick_is_dropped(stack: Variant) -> None:
    (rule,) = stack.of_type("AWS::Events::Rule")
    (target,) = rule["Targets"]
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")
    assert target["Arn"].endswith(":s3queue_sweeper")
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}


def test_logs_are_kept_for_a_while_and_no_longer(stack: Variant) -> None:
    for function in stack.of_type("AWS::Lambda::Function"):
        assert function["LoggingConfig"]["LogGroup"]
    assert all(group["RetentionInDays"] == 14 for group in stack.of_type("AWS::Logs::LogGroup"))


def test_records_and_dead_letters_expire_as_their_queue_says(stack: Variant) -> None:
    (bucket,) = (b for b in stack.of_type("AWS::S3::Bucket") if len(b["LifecycleConfiguration"]["Rules"]) > 1)
    rules = bucket["LifecycleConfiguration"]["Rules"]
    days = {rule["Prefix"]: rule["ExpirationInDays"] for rule in rules if "Prefix" in rule}
    assert days["emails/records/"] == 5
    assert days["webhooks/dead/"] == 30
    assert {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}.items() <= rules[0].items()
    # Nothing expires what has not run yet.
    assert days["emails/done/"] == 5
    assert {prefix.split("/")[1] for prefix in days} == {"records", "done", "idempotency", "dedup", "dead"}


def test_the_buckets_are_private_encrypted_and_unversioned(stack: Variant) -> None:
    for bucket in stack.of_type("AWS::S3::Bucket"):
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
        assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
        assert "VersioningConfiguration" not in bucket


def test_destroy_keeps_the_data_by_default(stack: Variant) -> None:
    kept = {r["DeletionPolicy"] for r in stack.template.resources.values() if r["Type"] == "AWS::S3::Bucket"}
    assert kept == {"Retain"}
    assert not stack.of_type("Custom::S3AutoDeleteObjects")


def test_destroy_without_keep_data_leaves_nothing_behind(synthesize: Synthesize) -> None:
    stack = synthesize(keep_data=False)
    for id, resource in stack.template.resources.items():
        assert resource.get("DeletionPolicy", "Delete") == "Delete", id
    emptied = {custom["BucketName"] for custom in stack.of_type("Custom::S3AutoDeleteObjects")}
    assert emptied == {id.lower() for id in stack.template.of_type("AWS::S3::Bucket")}
    # A function whose log group is not the stack's makes one that stays.
    for function in stack.of_type("AWS::Lambda::Function"):
        assert function["LoggingConfig"]["LogGroup"]


def test_a_new_account_can_deploy_without_reserved_concurrency_and_is_told_what_that_means(
    stack: Variant, synthesize: Synthesize
) -> None:
    small = synthesize(reserved_concurrency=False)
    assert not any("ReservedConcurrentExecutions" in f for f in small.of_type("AWS::Lambda::Function"))
    assert any("not enforced" in info and "5 $ per million" in info for info in small.infos)
    reserved = sum(f.get("ReservedConcurrentExecutions", 0) for f in stack.of_type("AWS::Lambda::Function"))
    assert any(f"reserves {reserved} concurrent" in info for info in stack.infos)


def test_the_local_stack_differs_only_in_runtime_and_transport(stack: Variant, synthesize: Synthesize) -> None:
    local = synthesize(target="local")
    assert local.template.resources.keys() >= {
        id for id, r in stack.template.resources.items() if r["Type"] != "AWS::S3::BucketPolicy"
    }
    for name in QUEUES:
        here, there = (dict(s.template.function(f"s3queue-{name}")) for s in (local, stack))
        for function in (here, there):
            del function["Runtime"], function["Architectures"]
        assert here == there


def test_a_variable_that_looks_like_a_secret_is_warned_of(synthesize: Synthesize) -> None:
    bare = synthesize(environment={"emails": {"SMTP_PASSWORD": "hunter2", "SMTP_HOST": "mail"}})
    (warning,) = bare.warnings
    assert "SMTP_PASSWORD" in warning
    assert "hunter2" not in warning
    # Resolved by CloudFormation, it is in the function's configuration for everyone to read, too.
    resolved = {"SMTP_PASSWORD": "{{resolve:secretsmanager:smtp:SecretString:password}}"}
    assert synthesize(environment={"emails": resolved}).warnings
    assert not synthesize(secrets={"emails": {"SMTP_PASSWORD": "secretsmanager:smtp#password"}}).warnings


def test_a_handler_that_outlives_its_lease_is_refused_with_what_to_change() -> None:
    from infra.constructs.s3_queue import function_timeout

    settings = QueueSettings.of(handler_timeout=30, visibility_timeout=30)
    with pytest.raises(ValueError, match=r"'emails': handler_timeout .* shorter than visibility_timeout"):
        function_timeout("emails", settings)


def test_a_handler_that_outlives_lambda_is_refused_with_what_to_change() -> None:
    from infra.constructs.s3_queue import function_timeout

    settings = QueueSettings.of(handler_timeout=14 * 60 + 58, visibility_timeout=3600)
    with pytest.raises(ValueError, match="15 minutes"):
        function_timeout("emails", settings)
    # As the refusal says: the function of such a queue launches runs, and calls no handler.
    assert function_timeout("emails", dataclasses.replace(settings, engine="spark")).to_minutes() == 15


def test_a_function_name_that_lambda_would_refuse_is_refused_at_synth() -> None:
    from infra.constructs.s3_queue import worker_name

    with pytest.raises(ValueError, match="64 characters"):
        worker_name("s3queue", "x" * 60)


@pytest.mark.parametrize("flag", ["keep_data", "reserved_concurrency", "enforce_conditional_writes", "direct_store"])
def test_a_flag_is_true_or_false_and_nothing_that_looks_like_it(flag: str) -> None:
    from aws_cdk import App

    from infra.options import Options

    for value, expected in (("false", False), (False, False), ("true", True), (None, True)):
        options = Options.from_context(App(context={flag: value} if value is not None else {}).node)
        assert getattr(options, flag) is expected
    with pytest.raises(ValueError, match=flag):
        Options.from_context(App(context={flag: "no"}).node)


@pytest.mark.parametrize(("option", "kind"), [("target", "Target"), ("metrics", "Metrics")])
def test_an_option_is_one_of_its_choices(option: str, kind: str) -> None:
    from aws_cdk import App

    from infra.options import Options

    for choice in CHOICES[kind]:
        assert getattr(Options.from_context(App(context={option: choice}).node), option) == choice
    with pytest.raises(ValueError, match=", ".join(CHOICES[kind])):
        Options.from_context(App(context={option: "some"}).node)


def test_options_that_are_not_given_are_the_defaults() -> None:
    from aws_cdk import App

    from infra.options import Options

    assert Options.from_context(App().node) == Options()
