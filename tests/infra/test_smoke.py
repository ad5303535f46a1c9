"""`make aws-smoke` without a server: what it asks and says, what it removes after whatever went wrong, its report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from rich.console import Console

import infra
from infra.local.home import Home
from infra.local.steps import Steps
from infra.smoke import __main__ as command
from infra.smoke import cleanup, cost, report, run
from infra.smoke.cleanup import Left
from infra.smoke.installation import Figure, Installation
from infra.smoke.report import Result, Smoke
from s3queue.costs.lines import Line
from support.smoke_account import SmokeAccount

SCRIPTED = ["--profile=sandbox", "--region=eu-west-1", "--yes"]


def fine(site: Installation) -> str:
    site.measured("something", "1 s")
    return "as it has to be"


@pytest.fixture
def account(tmp_path: Path) -> SmokeAccount:
    return SmokeAccount(tmp_path)


class Terminal:
    """Whoever runs the command, and what they see."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report.md"
        self._screen = io.StringIO()
        self.asked: list[str] = []
        self._home = Home(folder)

    @property
    def seen(self) -> str:
        return self._screen.getvalue()

    def run(self, *arguments: str, answers: str = "") -> int:
        given = iter(answers.split())

        def ask(question: str) -> str:
            self.asked.append(question)
            return next(given)

        console = Console(file=self._screen, width=400)
        return command.main([*arguments, f"--report={self.report}"], ask=ask, console=console, home=self._home)


@pytest.fixture
def terminal(account: SmokeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The command with one path, which ends well, and Spark runs that nobody started."""
    monkeypatch.setattr(command, "_account", lambda chosen, ask, steps, home: nullcontext(account))
    monkeypatch.setattr(run, "GROUPS", ((fine,), (fine, fine), (fine, fine)))
    monkeypatch.setattr(run, "_count", lambda site, told, hours: None)
    monkeypatch.setattr(run, "FACTS", tmp_path / "not there")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    return Terminal(tmp_path)


# What it asks and says


def test_it_says_what_it_creates_and_what_that_costs_before_it_asks(terminal: Terminal, account: SmokeAccount) -> None:
    assert terminal.run("--profile=sandbox", "--region=eu-west-1", answers="no") == 2
    assert account.done == []
    assert terminal.asked == ["Type yes to go on: "]
    dollars = cost.total(cost.forecast(5))
    for said in (
        "account …1234, eu-west-1",
        "-spark",
        "two buckets",
        "8 functions",
        f"about ${dollars:.2f}",
        "EMR $0.",
    ):
        assert said in terminal.seen
    assert "Nothing was created." in terminal.seen
    assert 0.01 < dollars < 1


@pytest.mark.parametrize("answer", ["y", "YES!", "no", "-"])
def test_only_yes_is_a_yes(terminal: Terminal, account: SmokeAccount, answer: str) -> None:
    assert terminal.run("--profile=sandbox", "--region=eu-west-1", answers=answer) == 2
    assert account.done == []


def test_an_estimate_of_a_dollar_is_refused(terminal: Terminal, account: SmokeAccount, monkeypatch: Any) -> None:
    monkeypatch.setattr(cost, "RUN_SECONDS", 10_000.0)
    assert terminal.run(*SCRIPTED) == 2
    assert "should be below $1" in terminal.seen
    assert account.done == []


@pytest.mark.parametrize("missing", range(3))
def test_without_a_terminal_it_asks_nobody(
    terminal: Terminal, account: SmokeAccount, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert terminal.run(*(flag for index, flag in enumerate(SCRIPTED) if index != missing)) == 2
    assert (account.done, terminal.asked) == ([], [])
    assert "give --profile, --region and --yes" in terminal.seen


def test_a_script_is_not_asked(terminal: Terminal, account: SmokeAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert terminal.run(*SCRIPTED, "-c", "kms_key=alias/mine") in (0, 1)
    assert terminal.asked == []
    assert set(account.context) >= {
        "keep_data=false",
        "smoke_queue=true",
        "reserved_concurrency=false",
        "kms_key=alias/mine",
    }


def test_whoever_leaves_them_out_is_asked_for_profile_and_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile sandbox]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_REGION"), monkeypatch.delenv("AWS_DEFAULT_REGION")
    answers = iter(["sandbox", ""])
    chosen = SimpleNamespace(local=False, profile=None, region=None)
    with command._account(chosen, lambda question: next(answers), Steps(), Home(tmp_path)) as found:
        assert (found.profile, found.region) == ("sandbox", "eu-north-1")


# What it removes


def test_a_run_that_ends_well_leaves_nothing(terminal: Terminal, account: SmokeAccount) -> None:
    account.on_deploy = lambda: account.buckets.clear()
    assert terminal.run(*SCRIPTED) == 0, terminal.seen
    assert account.done == ["deploy", "destroy"]
    assert "nothing left" in terminal.report.read_text()


def failing(account: SmokeAccount) -> None:
    raise account.failure("Deploy: exit status 1")


def interrupted(account: SmokeAccount) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("happens", "said"), [(failing, "the CLI's last words"), (interrupted, "it was interrupted")])
def test_a_deployment_that_ends_early_is_removed(
    terminal: Terminal, account: SmokeAccount, happens: Callable[[SmokeAccount], None], said: str
) -> None:
    account.on_deploy = lambda: happens(account)
    assert terminal.run(*SCRIPTED) == 1
    assert account.done[:2] == ["deploy", "destroy"]
    assert account.stacks == set()
    assert said in terminal.report.read_text()
    assert "**FAILED**" in terminal.report.read_text()


def test_a_path_that_fails_is_reported_and_the_others_go_on(
    terminal: Terminal, account: SmokeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(site: Installation) -> str:
        raise ValueError("not as it | has to be")

    monkeypatch.setattr(run, "GROUPS", ((fine,), (broken, fine), (fine, fine)))
    assert terminal.run(*SCRIPTED) == 1
    assert account.stacks == set()
    told = terminal.report.read_text()
    assert "| broken | **failed** | ValueError: not as it \\| has to be |" in told
    assert told.count("| fine | ok |") == 4


def test_ctrl_c_does_not_wait_for_the_paths_that_still_wait(
    terminal: Terminal, account: SmokeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(site: Installation) -> str:
        return str(site.until(lambda: None, "nothing came", seconds=10_000))

    def interrupts(site: Installation) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "GROUPS", ((waits, interrupts),))
    assert terminal.run(*SCRIPTED) == 1
    assert account.stacks == set()
    assert "it was interrupted" in terminal.report.read_text()


def test_a_bucket_that_was_written_to_meanwhile_is_emptied(terminal: Terminal, account: SmokeAccount) -> None:
    assert terminal.run(*SCRIPTED) == 0
    (bucket,) = [what.partition(" ")[2] for what in account.done if what.startswith("empty ")]
    assert account.done == ["deploy", "destroy", f"empty {bucket}", "destroy"]


@pytest.mark.parametrize("happens", [failing, interrupted])
def test_what_is_left_is_named_with_the_command_that_removes_it(
    terminal: Terminal, account: SmokeAccount, happens: Callable[[SmokeAccount], None]
) -> None:
    account.on_destroy = lambda: happens(account)
    assert terminal.run(*SCRIPTED) == 1
    name = min(account.stacks)
    for told in (terminal.seen, terminal.report.read_text()):
        assert f"aws cloudformation delete-stack --stack-name {name} --region eu-west-1" in told
        assert f"aws cloudformation delete-stack --stack-name {name}-spark --region eu-west-1" in told
        assert f"aws s3 rb --force s3://{name}-bucket --region eu-west-1" in told
        assert ("last words" if happens is failing else "interrupted") in told


def test_an_account_that_cannot_be_asked_counts_as_left(terminal: Terminal, account: SmokeAccount) -> None:
    original = account.client

    def unreachable(service: str) -> Any:
        raise EndpointConnectionError(endpoint_url="https://aws")

    def happens() -> None:
        account.client = unreachable  # type: ignore[method-assign]

    account.on_deploy = happens
    assert terminal.run(*SCRIPTED) == 1
    assert "the account could not be asked" in terminal.seen
    account.client = original  # type: ignore[method-assign]


def test_a_spark_application_that_idles_is_stopped_first(account: SmokeAccount) -> None:
    """CloudFormation deletes it in no other state."""
    asked: list[str] = []
    states = iter(["STARTED", "STOPPING", "STOPPED"])

    class Emr:
        def list_job_runs(self, applicationId: str, states: list[str]) -> Any:  # noqa: N803
            return {"jobRuns": [{"id": "run-1"}]}

        def cancel_job_run(self, applicationId: str, jobRunId: str) -> None:  # noqa: N803
            asked.append(f"cancel {jobRunId}")

        def get_application(self, applicationId: str) -> Any:  # noqa: N803
            return {"application": {"state": next(states)}}

        def stop_application(self, applicationId: str) -> None:  # noqa: N803
            asked.append(f"stop {applicationId}")

    account.deploy(["stack=s"])
    account.buckets = {}
    account._emr_serverless = Emr  # type: ignore[method-assign]
    site = Installation(account, "s")  # type: ignore[arg-type]
    site.__dict__["deployment"] = SimpleNamespace(spark_application="00app")
    site.is_stopped = SimpleNamespace(wait=lambda seconds: False, clear=lambda: None)  # type: ignore[assignment]

    assert not cleanup.remove(site)
    assert asked == ["cancel run-1", "stop 00app", "stop 00app"]
    assert account.done == ["deploy", "destroy"]


def test_a_spark_application_that_cannot_be_asked_keeps_nothing_else_alive(account: SmokeAccount) -> None:
    class Emr:
        def list_job_runs(self, **asked: Any) -> Any:
            raise EndpointConnectionError(endpoint_url="https://emr")

    account.deploy(["stack=s"])
    account.buckets = {}
    account._emr_serverless = Emr  # type: ignore[method-assign]
    site = Installation(account, "s")  # type: ignore[arg-type]
    site.__dict__["deployment"] = SimpleNamespace(spark_application="00app")

    assert not cleanup.remove(site)
    assert account.done == ["deploy", "destroy"]


# What it reports


def told(**fields: Any) -> Smoke:
    return Smoke(
        **{
            "title": "AWS, account …1234, eu-west-1",
            "is_aws": True,
            "name": "s3queue-smoke-1",
            "commit": "abc",
            "began_at": datetime(2026, 11, 16, 12, tzinfo=UTC),
            "results": [Result("light", "fine", True, 3.2)],
            "figures": [Figure("PutObject → handler", "0.2 s")],
            "lines": [Line(what="EMR: vCPU", count=2, price=0.05, unit="vCPU-hours", per=1, how="counted")],
            "asked": {"PutObject": 3},
            **fields,
        }
    )


def test_the_first_line_says_against_what_it_ran() -> None:
    first = report.markdown(told()).splitlines()[2]
    assert first == "**Against: AWS, account …1234, eu-west-1.**"
    first = report.markdown(told(title="NOT AWS, but an emulator", is_aws=False)).splitlines()[2]
    assert first == "**Against: NOT AWS, but an emulator.** This says nothing about AWS."


def test_a_report_that_is_committed_has_no_block_that_the_tests_of_documents_would_run() -> None:
    left = Left({"stack s": "aws cloudformation delete-stack --stack-name s"}, why="two\nlines")
    text = report.markdown(told(left=left, failure="Deploy: exit status 1", facts=report.verbatim("as written  a PUT")))
    assert "```" not in text
    assert "- stack s: `aws cloudformation delete-stack --stack-name s`" in text
    assert "\n    two\n    lines\n" in text


def test_a_report_has_what_was_measured_and_what_it_cost() -> None:
    text = report.markdown(told())
    for row in (
        "| light | ok | fine | 3 |",
        "| PutObject → handler | 0.2 s |",
        "| EMR: vCPU | 2 | vCPU-hours | 0.10000 | counted |",
        "| **all** | | | **0.1000** | |",
        "Requests of the smoke itself: 3 PutObject.",
        "No stack, no bucket and no log group of this name is left.",
    ):
        assert row in text


@pytest.mark.parametrize(
    "fields",
    [
        {"results": []},
        {"results": [Result("light", "late", False, 1)]},
        {"failure": "it was interrupted"},
        {"left": Left({"stack s": "aws …"})},
    ],
)
def test_only_a_whole_run_that_leaves_nothing_is_fine(fields: dict[str, Any]) -> None:
    assert told().is_fine
    assert not told(**fields).is_fine
    assert "**FAILED**" in report.markdown(told(**fields))


def test_a_rehearsal_is_never_written_where_the_report_is_committed(
    terminal: Terminal, account: SmokeAccount, tmp_path: Path
) -> None:
    account.is_aws, account.title = False, "NOT AWS, but an emulator"
    committed = infra.ROOT / "docs" / "aws-smoke.md"
    before = committed.read_bytes() if committed.exists() else None
    console = Console(file=io.StringIO())
    assert command.main(SCRIPTED, console=console, home=Home(tmp_path)) == 0
    assert "NOT AWS" in (tmp_path / "aws-smoke.md").read_text()
    assert (committed.read_bytes() if committed.exists() else None) == before


# Facts


def test_facts_are_skipped_with_a_line_where_the_tests_have_none(terminal: Terminal) -> None:
    terminal.run(*SCRIPTED)
    assert "facts: skipped, this working tree has no tests/aws_facts" in terminal.seen
    assert "Skipped: this working tree has no `tests/aws_facts`." in terminal.report.read_text()


@pytest.mark.parametrize(
    ("is_aws", "status", "is_fine"),
    [(True, 0, True), (True, 1, False), (True, 2, False), (False, 1, True), (False, 2, False)],
)
def test_facts_are_measured_in_the_deployed_bucket(
    account: SmokeAccount, monkeypatch: pytest.MonkeyPatch, is_aws: bool, status: int, is_fine: bool
) -> None:
    called: list[Any] = []

    def ran(program: list[str], **options: Any) -> Any:
        called.append((program[1:], options["env"]["AWS_PROFILE"]))
        return subprocess.CompletedProcess(program, status, stdout="as written  a conditional PUT\n", stderr="")

    monkeypatch.setattr(run, "FACTS", Path(__file__))
    monkeypatch.setattr(subprocess, "run", ran)
    account.is_aws = is_aws
    site = Installation(account, "s")  # type: ignore[arg-type]
    site.__dict__["deployment"] = SimpleNamespace(bucket="b")
    smoke = told()
    run._measure_facts(site, Console(file=io.StringIO()), smoke)
    endpoint = [] if is_aws else ["--endpoint", "http://127.0.0.1:1"]
    assert called == [(["-m", "aws_facts", "--profile", "sandbox", "--bucket", "b", *endpoint], "sandbox")]
    assert smoke.is_fine is is_fine
    assert "as written  a conditional PUT" in smoke.facts


def test_facts_are_not_measured_under_a_key_that_changes_etags(account: SmokeAccount) -> None:
    site = Installation(account, "s", kms_key="arn:aws:kms:eu-west-1:123456789012:key/1")  # type: ignore[arg-type]
    smoke = told()
    run._measure_facts(site, Console(file=io.StringIO()), smoke)
    assert smoke.is_fine
    assert smoke.facts.startswith("Skipped: under a KMS key an ETag is no MD5.")


def test_the_facts_that_this_working_tree_has_are_found() -> None:
    assert run.FACTS.exists()


# The command


def test_the_makefile_calls_it_so() -> None:
    recipe = (infra.ROOT / "Makefile").read_text().partition("\naws-smoke: ")[2].splitlines()[1]
    assert recipe.strip() == "@PYTHONPATH=functions:. $(PY) -m infra.smoke $(ARGS)"
    listed = subprocess.run(["make", "help"], cwd=infra.ROOT, capture_output=True, text=True, check=True)
    assert "make aws-smoke " in listed.stdout


def test_it_does_not_load_the_cdk() -> None:
    """Its Node.js process would hear the terminal's Ctrl-C, too."""
    program = "import sys, json, infra.smoke.__main__; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=infra.ROOT,
        env={"PYTHONPATH": f"{infra.FUNCTIONS}:{infra.ROOT}", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"jsii", "aws_cdk", "constructs"} & set(json.loads(done.stdout))
