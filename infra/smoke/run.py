"""One smoke, from the deployment to the clean-up, which runs however the rest ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape

from infra import FUNCTIONS, ROOT
from infra.local.steps import StepFailed, Steps

from . import cleanup, cost, paths, spark_paths
from .account import Account
from .installation import Installation
from .report import Result, Smoke, verbatim

Path = Callable[[Installation], str]
#: One group after the other, those of a group beside each other. The first waits for S3's events; the second is timed,
#: and its function has not run before; the last needs every other message's record.
GROUPS: Sequence[Sequence[Path]] = (
    (paths.image,),
    (paths.light,),
    (
        spark_paths.heavy,
        paths.killed_worker,
        paths.lost_event,
        paths.delayed,
        paths.retry,
        paths.dead_and_replay,
        paths.batch,
        paths.dashboard,
    ),
    (spark_paths.archive, paths.rescue, paths.accounted),
)
#: What the stack is deployed with.
CONTEXT = ("keep_data=false", "smoke_queue=true")
#: A module of the tests, which measures again what AWS answers.
FACTS = ROOT / "tests" / "aws_facts" / "__main__.py"
FACTS_SECONDS = 900.0


def smoke(account: Account, console: Console, name: str, context: Sequence[str] = ()) -> Smoke:
    """Deploy, travel every path, measure, remove; what was seen.

    Ctrl-C and a failure end it early; everything is removed then, too.
    """
    began, chosen = time.monotonic(), (*CONTEXT, *context)
    given = dict(setting.split("=", 1) for setting in context)
    site = Installation(account, name, kms_key=given.get("kms_key", ""))
    told = Smoke(
        title=account.title,
        is_aws=account.is_aws,
        name=name,
        commit=_commit(),
        began_at=datetime.now(UTC),
        context=chosen,
        figures=site.figures,
    )
    try:
        account.deploy([f"stack={name}", *chosen])
        deployed = time.monotonic()
        site.measured("deployment", f"{deployed - began:.0f} s")
        encrypted: Sequence[Sequence[Path]] = ((paths.encrypted,),) if site.kms_key else ()
        for group in (*GROUPS[:-1], *encrypted, *GROUPS[-1:]):
            _travel(site, console, told, group)
        _measure_facts(site, console, told)
        _count(site, told, hours=(time.monotonic() - deployed) / 3600)
    except KeyboardInterrupt:
        told.failure = "it was interrupted"
    except StepFailed as failed:
        told.failure = f"{failed.what}: {failed.tail}"
    except Exception as error:
        told.failure = f"{type(error).__name__}: {error}"
    finally:
        if told.failure:
            console.print(f"[bold red]{escape(told.failure)}[/]", soft_wrap=True)
        console.print("[bold]Remove everything[/]")
        told.left = cleanup.remove(site)
    told.minutes = (time.monotonic() - began) / 60
    return told


def _travel(site: Installation, console: Console, told: Smoke, group: Sequence[Path]) -> None:
    travellers = ThreadPoolExecutor(len(group))
    try:
        for done in as_completed([travellers.submit(_travelled, site, path) for path in group]):
            result = done.result()
            told.results.append(result)
            mark = "[green]✓[/]" if result.is_true else "[bold red]✗[/]"
            said = f"{mark} {result.path}: {escape(result.said)} [dim]{result.seconds:.0f} s[/]"
            console.print(said, soft_wrap=True)
    except BaseException:
        # Whoever still waits would hold the clean-up up for minutes.
        site.is_stopped.set()
        raise
    finally:
        travellers.shutdown(cancel_futures=True)


def _travelled(site: Installation, path: Path) -> Result:
    began, name = time.monotonic(), path.__name__.replace("_", " ")
    try:
        said, is_true = path(site), True
    except Exception as error:
        said, is_true = f"{type(error).__name__}: {error}", False
    return Result(name, said, is_true, time.monotonic() - began)


def _measure_facts(site: Installation, console: Console, told: Smoke) -> None:
    """What tests/aws_facts says of this account; it measures in the same bucket, before that is removed."""
    if not FACTS.exists():
        console.print("[yellow]-[/] facts: skipped, this working tree has no tests/aws_facts")
        told.facts = "Skipped: this working tree has no `tests/aws_facts`."
        return
    if site.kms_key and site.account.is_aws:
        console.print("[yellow]-[/] facts: skipped, under a KMS key S3's ETags are others")
        told.facts = "Skipped: under a KMS key an ETag is no MD5. Run it without `kms_key` for the facts."
        return
    account = site.account
    asked = ["--profile", account.profile, "--bucket", site.bucket]
    if not account.is_aws:
        asked += ["--endpoint", account.client("s3").meta.endpoint_url]
    found = os.pathsep.join(map(str, (FUNCTIONS, ROOT / "tests", ROOT)))
    with Steps(console).step("Measure facts about AWS again") as step:
        done = subprocess.run(
            [sys.executable, "-m", "aws_facts", *asked],
            cwd=ROOT,
            env=account.environment(os.environ) | {"PYTHONPATH": found},
            capture_output=True,
            text=True,
            check=False,
            timeout=FACTS_SECONDS,
        )
    # 0: as written. 1: some differ, as those of an emulator may. Anything else: it was not asked to the end.
    verdicts = {0: "as they are written down", 1: "not all as they are written down"}
    verdict = verdicts.get(done.returncode, f"not asked to the end: {done.stderr.strip()[-300:]}")
    is_true = done.returncode == 0 or (done.returncode == 1 and not account.is_aws)
    told.results.append(Result("facts", verdict, is_true, step.seconds))
    told.facts = verbatim(done.stdout.strip())


def _count(site: Installation, told: Smoke, *, hours: float) -> None:
    told.asked = dict(site.account.observed.requests)
    jobs = spark_paths.job_runs(site)
    told.lines = cost.spent(site.sent, told.asked, jobs, queues=len(site.deployment.workers), hours=hours)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
