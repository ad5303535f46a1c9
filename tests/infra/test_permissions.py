"""Who can do what, judged from the synthesized policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from s3queue import Queue
from s3queue.errors import AccessDenied
from support.iam_template import ACCOUNT, Role, Template, listed
from support.role_store import RoleStore
from support.stack_variant import QUEUES, Synthesize, Variant
from support.workbench import Workbench

OBJECT_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
#: A conditional write; without it, the request is a plain one.
IF_ABSENT, IF_MATCH = {"s3:if-none-match": "*"}, {"s3:if-match": '"etag"'}
#: What only conditional requests may write. Not read from infra: the CDK takes seconds to import.
STATE = ["leases", "records", "locks"]
STORAGE_CLASS, ENCRYPTION = "s3:x-amz-storage-class", "s3:x-amz-server-side-encryption"
KMS_KEY, CUSTOMER_ALGORITHM = f"{ENCRYPTION}-aws-kms-key-id", f"{ENCRYPTION}-customer-algorithm"
ANOTHER_KEY = f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/another"
#: What a PUT can say so that nobody, or not everybody who must, can read what it wrote.
UNREADABLE = {
    "GLACIER": {STORAGE_CLASS: "GLACIER"},
    "DEEP_ARCHIVE": {STORAGE_CLASS: "DEEP_ARCHIVE"},
    "an archive one day": {STORAGE_CLASS: "INTELLIGENT_TIERING"},
    "a class of the future": {STORAGE_CLASS: "PERMAFROST"},
    "a customer's key": {CUSTOMER_ALGORITHM: "AES256"},
    "the default KMS key": {ENCRYPTION: "aws:kms"},
    "another KMS key": {ENCRYPTION: "aws:kms", KMS_KEY: ANOTHER_KEY},
    "two layers of KMS": {ENCRYPTION: "aws:kms:dsse", KMS_KEY: ANOTHER_KEY},
}
READABLE: dict[str, dict[str, str]] = {
    "nothing": {},
    "the class": {STORAGE_CLASS: "STANDARD"},
    "the encryption": {ENCRYPTION: "AES256"},
    "both, and a condition": {STORAGE_CLASS: "STANDARD", ENCRYPTION: "AES256", **IF_ABSENT},
}


def worker(stack: Variant, queue: str) -> Role:
    return stack.template.role_of(f"s3queue-{queue}")


def administrator(stack: Variant) -> Role:
    return Role(stack.template, [{"Effect": "Allow", "Action": "*", "Resource": "*"}])


def producer(stack: Variant, queue: str) -> Role:
    (policy,) = (p for p in stack.of_type("AWS::IAM::ManagedPolicy") if f"enqueue to {queue}," in str(p["Description"]))
    return Role(stack.template, policy["PolicyDocument"]["Statement"])


@pytest.mark.parametrize("other", [name for name in QUEUES if name != "emails"])
def test_the_worker_of_emails_reaches_no_object_of_another_queue(stack: Variant, other: str) -> None:
    from infra.permissions import WORKER

    role = worker(stack, "emails")
    for kind in WORKER:
        for action in OBJECT_ACTIONS:
            assert not role.may(action, f"{stack.bucket}/{other}/{kind}/x", IF_ABSENT), f"{action} {other}/{kind}"
    assert not role.may("s3:GetObject", f"{stack.bucket}/{other}/queue.json")


def test_a_worker_lists_its_own_prefix_only(stack: Variant) -> None:
    role = worker(stack, "emails")
    for own in ("emails/", "emails/messages/", "emails/leases/messages/p200/"):
        assert role.may_list(stack.bucket, own)
    for other in ("webhooks/", "emails-bulk/", "emails-bulk/messages/", "emails", "", "archive/", None):
        assert not role.may_list(stack.bucket, other), other


def test_a_worker_cannot_enqueue_rewrite_history_or_configure(stack: Variant) -> None:
    role, at = worker(stack, "emails"), f"{stack.bucket}/emails"
    assert not role.may("s3:PutObject", f"{at}/messages/x")
    assert not role.may("s3:DeleteObject", f"{at}/records/x")
    assert not role.may("s3:DeleteObject", f"{at}/dead/x")
    assert not role.may("s3:PutObject", f"{at}/queue.json")
    assert not role.may("s3:PutObject", f"{at}/stats.json")
    assert not role.may("lambda:InvokeFunction", f"arn:aws:lambda:eu-west-1:{ACCOUNT}:function:s3queue-webhooks")


def test_a_worker_that_sends_to_another_queue_may_enqueue_there_and_nothing_else(synthesize: Synthesize) -> None:
    from infra.permissions import BULK, LAUNCHER, SWEEPER, WORKER

    stack = synthesize(sends_to={"emails": ("webhooks",)})
    role, at = worker(stack, "emails"), f"{stack.bucket}/webhooks"
    kinds = {*WORKER, *SWEEPER, *BULK, *LAUNCHER}
    allowed = {
        (action, kind)
        for kind in kinds
        for action in OBJECT_ACTIONS
        if role.may(action, f"{at}/{kind}/messages/x", IF_ABSENT)
    }
    assert allowed == {
        ("s3:PutObject", "messages"),
        ("s3:PutObject", "delayed"),
        # A dedup id that counts for a while.
        ("s3:PutObject", "dedup"),
        ("s3:GetObject", "dedup"),
        # After an unknown answer: did it arrive, or has it even run?
        ("s3:GetObject", "messages"),
        ("s3:GetObject", "delayed"),
        ("s3:GetObject", "records"),
    }
    for document in ("queue.json", "stats.json"):
        assert role.may("s3:GetObject", f"{at}/{document}")
        assert not role.may("s3:PutObject", f"{at}/{document}", IF_ABSENT)
    for prefix in ("webhooks/", "webhooks/messages/", "webhooks/records/"):
        assert not role.may_list(stack.bucket, prefix), prefix
    assert not role.may("s3:PutObject", f"{stack.bucket}/emails-bulk/messages/x")
    assert not worker(stack, "webhooks").may("s3:PutObject", f"{stack.bucket}/emails/messages/x")


def test_a_target_that_nobody_deploys_ends_the_synth() -> None:
    from aws_cdk import App
    from aws_cdk import aws_lambda as lambda_

    from infra.options import Options
    from infra.queue_stack import QueueStack

    queues = {**QUEUES, "orders": replace(QUEUES["emails"], name="orders", sends_to=("emails", "invoices"))}
    code = lambda_.Code.from_inline("pass")
    with pytest.raises(ValueError, match=r"'orders': sends_to names 'invoices', .* has emails, emails-bulk, orders"):
        QueueStack(App(), "s3queue", queues=queues, code=code, options=Options())


def test_every_kind_of_state_is_tested() -> None:
    from infra.resource_policies import CONDITIONAL

    assert list(CONDITIONAL) == STATE


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("kind", STATE)
def test_nobody_writes_state_unconditionally(stack: Variant, queue: str, kind: str) -> None:
    key = f"{stack.bucket}/{queue}/{kind}/messages/x"
    assert not stack.template.role_of("s3queue_sweeper").may("s3:PutObject", key)
    for role in (worker(stack, queue), administrator(stack)):
        assert not role.may("s3:PutObject", key)
        assert role.may("s3:PutObject", key, IF_ABSENT)
        assert role.may("s3:PutObject", key, IF_MATCH)


def test_enforcement_can_be_switched_off(synthesize: Synthesize) -> None:
    stack = synthesize(enforce_conditional_writes=False)
    assert administrator(stack).may("s3:PutObject", f"{stack.bucket}/emails/leases/x")


def test_a_message_named_like_state_is_still_a_message(stack: Variant) -> None:
    assert producer(stack, "emails").may("s3:PutObject", f"{stack.bucket}/emails/messages/emails/leases/x")


@pytest.mark.parametrize("queue", QUEUES)
def test_a_producer_may_enqueue_to_its_queue_and_nothing_else(stack: Variant, queue: str) -> None:
    from infra.permissions import SWEEPER

    role = producer(stack, queue)
    for kind in SWEEPER:
        for name in QUEUES:
            for action in (*OBJECT_ACTIONS, "s3:PutObjectAcl", "s3:PutObjectTagging"):
                expected = name == queue and kind in ("messages", "delayed") and action == "s3:PutObject"
                assert role.may(action, f"{stack.bucket}/{name}/{kind}/x", IF_ABSENT) == expected, f"{action} {kind}"
    assert not role.may_list(stack.bucket, f"{queue}/")


#: `s3:ObjectCreationOperation` of a request that makes an object, and of one that begins or adds to an upload in parts.
WHOLE, PART = {"s3:ObjectCreationOperation": "true"}, {"s3:ObjectCreationOperation": "false"}


def assert_creates_only(role: Role, at: str) -> None:
    for key in (f"{at}/emails/messages/x", f"{at}/emails/delayed/20261116T101500Z/x"):
        assert role.may("s3:PutObject", key, WHOLE | IF_ABSENT)
        assert role.may("s3:PutObject", key, PART), "an upload in parts can begin"
        assert not role.may("s3:PutObject", key, WHOLE), "neither a plain PUT nor an upload's end overwrites"
        assert not role.may("s3:PutObject", key, WHOLE | IF_MATCH)
        assert not role.may("s3:PutObject", key), "a server that knows no such key refuses, too"
        assert not role.may("s3:PutObject", key, WHOLE | IF_ABSENT | {STORAGE_CLASS: "GLACIER"})
        assert not role.may("s3:PutObject", key, PART | {STORAGE_CLASS: "GLACIER"})
        for action in ("s3:GetObject", "s3:DeleteObject"):
            assert not role.may(action, key, WHOLE | IF_ABSENT)
    assert not role.may("s3:PutObject", f"{at}/webhooks/messages/x", WHOLE | IF_ABSENT)
    assert not role.may("s3:PutObject", f"{at}/emails/records/x", WHOLE | IF_ABSENT)


def test_a_producer_that_may_only_create_overwrites_nothing(synthesize: Synthesize) -> None:
    stack = synthesize(create_only_producers=True)
    assert_creates_only(producer(stack, "emails"), stack.bucket)


def test_one_producer_may_be_stricter_than_the_others(tmp_path: Path) -> None:
    from aws_cdk import App
    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_lambda as lambda_

    from infra.options import Options
    from infra.queue_stack import QueueStack

    (tmp_path / "handlers.py").touch()
    app = App()
    scope = QueueStack(app, "s3queue", queues=QUEUES, code=lambda_.Code.from_asset(str(tmp_path)), options=Options())
    emails = scope.queues["emails"]
    roles = [iam.Role(scope, name, assumed_by=iam.AccountRootPrincipal()) for name in ("Partner", "Shop")]
    emails.grant_enqueue(roles[0], create_only=True)
    emails.grant_enqueue(roles[1])
    stack = Variant(Template.read(Path(app.synth().directory) / scope.template_file), [], [])

    partner, shop = (stack.template.role(str(scope.resolve(role.role_name)["Ref"])) for role in roles)
    assert_creates_only(partner, stack.bucket)
    assert shop.may("s3:PutObject", f"{stack.bucket}/emails/messages/x", WHOLE)


def test_the_library_enqueues_with_the_strictest_policy(synthesize: Synthesize) -> None:
    stack, bench = synthesize(create_only_producers=True), Workbench()
    queue = Queue(
        store=RoleStore(bench.memory, producer(stack, "emails"), stack.bucket),
        name="emails",
        clock=bench.clock,
        chance=bench.chance,
    )
    waiting = [queue.enqueue({"n": 1}), queue.enqueue({"n": 2}, dedup_id="order-17"), queue.enqueue({"n": 3}, delay=60)]
    waiting += queue.enqueue_many([{"n": 4}, {"n": 5}])
    assert {f"emails/{path}" for path in waiting} == set(bench.keys("emails/"))

    # A name of the caller's may be that of a message that waits, so it is not allowed at all.
    with pytest.raises(AccessDenied):
        queue.enqueue({"n": 6}, name=waiting[0].removeprefix("messages/"))


@pytest.mark.parametrize("kind", ["messages", "delayed"])
@pytest.mark.parametrize("said", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_nobody_enqueues_what_no_worker_could_read(stack: Variant, kind: str, said: dict[str, str]) -> None:
    for role in (producer(stack, "emails"), administrator(stack)):
        assert not role.may("s3:PutObject", f"{stack.bucket}/emails/{kind}/x", said)
        assert not role.may("s3:PutObject", f"{stack.bucket}/emails/{kind}/x", said | IF_ABSENT)


@pytest.mark.parametrize("kind", ["messages", "delayed"])
@pytest.mark.parametrize("said", READABLE.values(), ids=READABLE.keys())
def test_whoever_says_nothing_odd_may_enqueue(stack: Variant, kind: str, said: dict[str, str]) -> None:
    assert producer(stack, "emails").may("s3:PutObject", f"{stack.bucket}/emails/{kind}/x", said)


@pytest.mark.parametrize("said", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_data_beside_the_queues_may_be_stored_as_one_likes(stack: Variant, said: dict[str, str]) -> None:
    assert administrator(stack).may("s3:PutObject", f"{stack.bucket}/datasets/orders/part-0.parquet", said)


def test_a_bucket_with_a_kms_key_takes_messages_under_that_key_only() -> None:
    from aws_cdk import App, Stack
    from aws_cdk import aws_s3 as s3
    from aws_cdk.assertions import Template as Synthesized
    from aws_cdk.aws_kms import Key

    from infra.resource_policies import deny_unreadable_messages

    scope = Stack(App(), "stack")
    bucket = s3.Bucket(scope, "Bucket", encryption_key=Key(scope, "Key"))
    for statement in deny_unreadable_messages(bucket):
        bucket.add_to_resource_policy(statement)
    template = Template(Synthesized.from_stack(scope).to_json()["Resources"])
    ((name, properties),) = template.of_type("AWS::S3::Bucket").items()
    (rule,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    own = rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"]
    anyone = Role(template, [{"Effect": "Allow", "Action": "*", "Resource": "*"}])

    def may(said: dict[str, str]) -> bool:
        return anyone.may("s3:PutObject", f"arn:aws:s3:::{name.lower()}/emails/messages/x", said)

    readable = {name: said for name, said in READABLE.items() if said.get(ENCRYPTION) != "AES256"}
    assert all(map(may, [*readable.values(), {ENCRYPTION: "aws:kms", KMS_KEY: own}]))
    # Readable, but without the key: not what its owner wants.
    assert not any(map(may, [*UNREADABLE.values(), {ENCRYPTION: "AES256"}]))


def test_the_sweeper_repairs_every_queue_but_touches_nothing_else_in_the_bucket(stack: Variant) -> None:
    role = stack.template.role_of("s3queue_sweeper")
    for queue in QUEUES:
        at = f"{stack.bucket}/{queue}"
        assert role.may_list(stack.bucket, f"{queue}/")
        assert role.may("s3:PutObject", f"{at}/stats.json")
        assert role.may("s3:PutObject", f"{at}/leases/x", IF_MATCH)
        assert role.may("s3:DeleteObject", f"{at}/dead/x")
        assert not role.may("s3:PutObject", f"{at}/messages/x")
        assert not role.may("s3:DeleteObject", f"{at}/records/x")
    for elsewhere in ("archive/x", "analytics/x", "other/leases/x"):
        assert not any(role.may(action, f"{stack.bucket}/{elsewhere}", IF_ABSENT) for action in OBJECT_ACTIONS)
    assert not role.may_list(stack.bucket, None)


def test_the_sweeper_may_wake_exactly_the_workers(stack: Variant) -> None:
    role = stack.template.role_of("s3queue_sweeper")
    functions = {f"s3queue-{queue}": True for queue in QUEUES} | {"s3queue_sweeper": False, "billing": False}
    for name, expected in functions.items():
        assert role.may("lambda:InvokeFunction", f"arn:aws:lambda:eu-west-1:{ACCOUNT}:function:{name}") == expected


def test_only_a_queue_that_publishes_events_may_put_them(stack: Variant) -> None:
    bus = f"arn:aws:events:eu-west-1:{ACCOUNT}:event-bus/default"
    assert worker(stack, "webhooks").may("events:PutEvents", bus)
    assert not worker(stack, "emails").may("events:PutEvents", bus)


def test_plain_http_is_refused_to_everyone(stack: Variant) -> None:
    for bucket in stack.of_type("AWS::S3::BucketPolicy"):
        key = f"arn:aws:s3:::{bucket['Bucket']}/emails/messages/x"
        assert administrator(stack).may("s3:GetObject", key)
        assert not administrator(stack).may("s3:GetObject", key, {"aws:SecureTransport": "false"})


@pytest.mark.parametrize("tracing", [False, True])
def test_only_tracing_names_no_resource_and_no_action_is_a_pattern(synthesize: Synthesize, tracing: bool) -> None:
    stack = synthesize(tracing=tracing)
    for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for policy in stack.of_type(kind):
            for statement in policy["PolicyDocument"]["Statement"]:
                actions, resources = listed(statement["Action"]), listed(statement["Resource"])
                assert not any("*" in action for action in actions), statement
                if "*" in resources:
                    assert tracing
                    assert all(action.startswith("xray:") for action in actions), statement


def test_a_failed_invocation_is_recorded_apart_and_cannot_be_read_by_workers(stack: Variant) -> None:
    (destination,) = {
        config["DestinationConfig"]["OnFailure"]["Destination"]
        for config in stack.of_type("AWS::Lambda::EventInvokeConfig")
        if "DestinationConfig" in config
    }
    role = worker(stack, "emails")
    assert destination != stack.bucket
    assert role.may("s3:PutObject", f"{destination}/aws/lambda/async/s3queue-emails/2026/11/16/x")
    assert not role.may("s3:PutObject", f"{destination}/aws/lambda/async/s3queue-emails-bulk/2026/11/16/x")
    assert not role.may("s3:GetObject", f"{destination}/aws/lambda/async/s3queue-emails/2026/11/16/x")


def test_s3_may_wake_each_function_from_its_own_bucket_and_this_account_only(stack: Variant) -> None:
    permissions = {
        p["FunctionName"]: p for p in stack.of_type("AWS::Lambda::Permission") if p["Principal"] == "s3.amazonaws.com"
    }
    assert len(permissions) == len(QUEUES) + 1
    sources = {function.rpartition(":")[2]: p["SourceArn"] for function, p in permissions.items()}
    failed_events = sources.pop("s3queue_sweeper")
    assert set(sources.values()) == {stack.bucket}
    assert failed_events != stack.bucket
    assert {permission["SourceAccount"] for permission in permissions.values()} == {ACCOUNT}


def test_cdks_notification_handler_configures_the_stacks_buckets_only(stack: Variant) -> None:
    functions = stack.template.of_type("AWS::Lambda::Function")
    (handler,) = (id for id in functions if id.startswith("BucketNotificationsHandler"))
    role = stack.template.role_of(functions[handler].get("FunctionName") or handler.lower())
    assert role.may("s3:PutBucketNotification", stack.bucket)
    assert not role.may("s3:PutBucketNotification", "arn:aws:s3:::another")
