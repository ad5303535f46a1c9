"""A deployment of any size stays within what AWS takes, or its synth says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import infra
from infra.synthesized import SynthesizedStack
from s3queue.deployment import Deployment
from s3queue.keys import Keys
from s3queue.settings import QueueSettings
from support.iam_template import Template
from support.spark_stack import synthesized
from support.stack_variant import Queue, Synthesize

COUNTS = (1, 16, 100)
#: AWS's own numbers, not read from infra: what is wrong there should be found here.
MOST = {
    "resources in a stack": 500,
    "outputs of a stack": 200,
    "parameters of a stack": 200,
    "bytes of a template": 1_000_000,
    "characters of a managed policy": 6_144,
    "characters of a role's inline policies": 10_240,
    "managed policies of a role": 10,
    "characters of a bucket policy": 20_480,
    "bytes of a function's variables": 4_096,
    "notification rules of a bucket": 100,
    "lifecycle rules of a bucket": 1_000,
    "widgets of a dashboard": 500,
}


def named(count: int, name: str = "customer-{:03}") -> dict[str, Queue]:
    """So many queues, of which the second is Spark's, and the others are for flows."""
    return {
        (queue := name.format(number)): Queue(
            queue,
            QueueSettings.of(engine="spark" if number == 1 else "lambda", visibility_timeout=300),
            flows=number != 1,
        )
        for number in range(count)
    }


@pytest.fixture(scope="module", params=COUNTS)
def deployed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SynthesizedStack:
    # Without cdk-nag, which takes a minute for a hundred of them, and checks nothing that three do not have.
    folder = tmp_path_factory.mktemp("code")
    return synthesized(folder, queues=named(request.param), nag=False, schedule_pipeline=True).synthesized


def queue_names(deployed: SynthesizedStack) -> list[str]:
    return list(named(len(deployed.templates) - 1))


def largest(deployed: SynthesizedStack) -> dict[str, int]:
    from infra.quotas import figures

    found: dict[str, int] = {}
    for figure in figures(deployed, "s3queue"):
        found[figure.quota.name] = max(figure.figure, found.get(figure.quota.name, 0))
    return found


def test_one_sixteen_or_a_hundred_queues_stay_within_every_quota(deployed: SynthesizedStack) -> None:
    found = largest(deployed)
    assert found.keys() - {"managed policies of a role"} == MOST.keys() - {"managed policies of a role"}
    assert {name: figure for name, figure in found.items() if figure > MOST[name]} == {}


def test_every_queue_is_complete_whatever_their_number(deployed: SynthesizedStack) -> None:
    template = Template(deployed.resources)
    bucket = template.queue_bucket
    names = queue_names(deployed)
    functions = template.functions()
    sweepers = {name: template.role_of(name) for name in functions if "_sweeper" in name}
    swept = {name: Deployment.from_env(functions[name]["Environment"]["Variables"]).workers for name in sweepers}
    assert sorted(queue for workers in swept.values() for queue in workers) == sorted(names)
    api, reader = template.role_of("s3queue_api"), template.role_of("s3queue_api_reader")
    for sweeper, workers in swept.items():
        for queue, worker in workers.items():
            assert worker in functions
            role, keys = sweepers[sweeper], Keys(queue)
            assert role.may_list(bucket, keys.root)
            assert role.may("s3:PutObject", f"{bucket}/{queue}/leases/messages/x", {"s3:if-match": "e"})
            assert not role.may("s3:PutObject", f"{bucket}/{queue}/leases/messages/x"), "unconditionally"
            assert role.may("s3:DeleteObject", f"{bucket}/{keys.progress}")
            assert role.may("lambda:InvokeFunction", f"arn:aws:lambda:eu-west-1:111122223333:function:{worker}")
            assert template.role_of(worker).may("s3:GetObject", f"{bucket}/{queue}/messages/x")
            assert api.may("s3:PutObject", f"{bucket}/{queue}/messages/x")
            assert reader.may("s3:GetObject", f"{bucket}/{queue}/records/messages/x")
    outputs = json.dumps(deployed.outputs)
    assert all(f"{queue.replace('-', '')}ProducerPolicy" in outputs for queue in names)


def test_delayed_messages_wake_the_sweeper_as_long_as_there_are_rules_for_them(deployed: SynthesizedStack) -> None:
    template, names = Template(deployed.resources), queue_names(deployed)
    prefixes = [
        rule["Filter"]["Key"]["FilterRules"][0]["Value"]
        for notification in template.of_type("Custom::S3BucketNotifications").values()
        for rule in notification["NotificationConfiguration"]["LambdaFunctionConfigurations"]
    ]
    told = [prefix for prefix in prefixes if prefix.endswith("/delayed/")]
    assert sorted(told) == (sorted(f"{name}/delayed/" for name in names) if len(names) <= 50 else [])


def test_each_sweeper_hears_of_the_crashes_of_its_own_queues(deployed: SynthesizedStack) -> None:
    template = Template(deployed.resources)
    functions = template.functions()
    rules = {
        rule["Filter"]["Key"]["FilterRules"][0]["Value"]: rule["LambdaFunctionArn"].rpartition(":")[2]
        for notification in template.of_type("Custom::S3BucketNotifications").values()
        for rule in notification["NotificationConfiguration"]["LambdaFunctionConfigurations"]
    }
    for name in (name for name in functions if "_sweeper" in name):
        for worker in Deployment.from_env(functions[name]["Environment"]["Variables"]).workers.values():
            record = f"aws/lambda/async/{worker}/2026/11/16/x"
            assert [function for prefix, function in rules.items() if record.startswith(prefix)] == [name]


def test_the_dashboard_shows_every_alarm_and_no_widget_more_than_a_hundred(deployed: SynthesizedStack) -> None:
    template = Template(deployed.resources)
    (dashboard,) = template.of_type("AWS::CloudWatch::Dashboard").values()
    widgets = json.loads(dashboard["DashboardBody"])["widgets"]
    shown = [widget["properties"]["alarms"] for widget in widgets if widget["type"] == "alarm"]
    assert sum(map(len, shown)) == len(template.of_type("AWS::CloudWatch::Alarm"))
    assert max(map(len, shown)) <= 100
    # What CloudWatch takes of one dashboard.
    assert len(widgets) <= 500
    assert sum(len(widget["properties"].get("metrics", ())) for widget in widgets) <= 2500


def test_a_hundred_queues_with_all_metrics_fit_into_one_dashboard(tmp_path: Path) -> None:
    deployed = synthesized(tmp_path, queues=named(100), nag=False, metrics="all").synthesized
    assert largest(deployed)["widgets of a dashboard"] <= 500


def test_a_queue_stays_in_its_stack_when_others_come_and_go(tmp_path: Path) -> None:
    # CloudFormation would make its function in the new stack before it removes the old one: the name is taken.
    def stack_of(count: int, queue: str) -> str:
        folder = tmp_path / str(count)
        folder.mkdir()
        found = synthesized(folder, queues=named(count), nag=False).synthesized
        holds = [file for file, template in found.templates.items() if f'"s3queue-{queue}"' in json.dumps(template)]
        return holds[-1]

    assert stack_of(3, "customer-002") == stack_of(40, "customer-002")


def test_a_hundred_and_one_queues_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"101 queues: .* S3 has 100 notification rules .*second installation"):
        synthesized(tmp_path, queues=named(101), nag=False)


def test_what_exceeds_a_quota_ends_the_synth_with_the_figure_and_the_way_out(tmp_path: Path) -> None:
    # A bucket has one policy, and each of these names is in it twice.
    queues = named(100, "a-queue-with-a-name-that-nobody-can-remember-{:03}")
    with pytest.raises(RuntimeError) as refused:
        synthesized(tmp_path, queues=queues, nag=False)
    said = str(refused.value)
    assert "characters of a bucket policy; AWS takes 20,480" in said
    assert "bytes of a function's variables; AWS takes 4,096" in said
    assert "Give queues shorter names" in said
    assert "-c enforce_conditional_writes=false" in said


def test_every_quota_is_checked(synthesize: Synthesize) -> None:
    from infra.quotas import figures

    synthesized = synthesize().synthesized
    assert synthesized
    quotas: Mapping[str, int] = {figure.quota.name: figure.quota.most for figure in figures(synthesized, "s3queue")}
    assert quotas.items() <= MOST.items()


def test_the_shipped_flags_let_cdk_merge_statements() -> None:
    assert json.loads((infra.ROOT / "cdk.json").read_text())["context"]["@aws-cdk/aws-iam:minimizePolicies"]
