"""`make demo`: the stack that `cdk deploy` ships, on this machine, with a bit of everything and one murder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import queues
from infra import LOCAL_APPLICATION, ROOT
from infra.local import faults
from infra.local.application import for_this_machine
from infra.local.emr.job_runs import ENDED
from infra.local.home import LOCAL, Home
from infra.local.stack import LocalStack, local_stack
from infra.local.steps import Steps
from s3queue.connect import connect
from s3queue.queue import Queue

from . import exports
from .accounts import Accounts, Check
from .messages import Sent, crowd, sent_by, slow_webhook
from .progress import Watch
from .receiver import Receiver

#: A stack of its own: whoever keeps one running with `make up` keeps it as it is.
HOME = Home(LOCAL / "demo")
#: Shorter than what is deployed, so that nobody has to wait a minute to see a rescue.
RESCUE_SECONDS = 5
SILENCE_SECONDS = 6
#: Without any change for this long something is wrong, and the accounts say what. Spark alone may need a minute to
#: start on a busy machine.
PATIENCE_SECONDS = 180.0


def demo(console: Console) -> int:
    """Run it; 0 only if every message is accounted for."""
    started = time.monotonic()
    variables = for_this_machine(HOME)
    outbox = Path(variables["EMAIL_OUTBOX"])
    for earlier in (outbox, HOME.emr):
        shutil.rmtree(earlier, ignore_errors=True)
    console.print("[bold]1. Deploy[/] the stack of this repository with the real CDK, onto this machine")
    with (
        Receiver(variables["WEBHOOK_SECRET"]).listening() as receiver,
        local_stack(HOME, variables=variables, steps=Steps(console)) as stack,
    ):
        opened = _prepare(console, stack)
        console.print("\n[bold]2. Hand heavy messages to Spark[/], which goes on with them beside everything else")
        heavy = exports.exports()
        _put_heavy(console, stack, heavy)
        console.print("\n[bold]3. Kill a worker[/] in the middle of a message")
        victim = slow_webhook(receiver.url)
        _put(stack, [victim])
        _kill_worker_of(console, stack, opened[victim.queue], victim, receiver)
        console.print("\n[bold]4. Enqueue[/] with plain put_object, and watch the bucket")
        light = list(crowd(receiver.url, datetime.now(UTC)))
        sent = [victim, *(one.sent for one in heavy), *light]
        _work(console, stack, opened, sent, light)
        sent += _sent_by_handlers(console, opened, light)
        console.print("\n[bold]5. Account[/] for every message, from its record")
        accounts = Accounts(opened, sent)
        console.print(accounts.table())
        _show_life(console, accounts, victim)
        _show_runs(console, stack, opened[exports.QUEUE])
        console.print("\n[bold]6. Check[/] what the world outside saw")
        is_fine = _check(
            console,
            accounts,
            [
                *accounts.checks(outbox, receiver, victim),
                *exports.checks(opened[exports.QUEUE], heavy, accounts.records),
            ],
        )
        with Steps(console).step("Stop everything"):
            stack.server.stop()
    _show_what_next(console, outbox)
    console.print(f"\n[dim]{time.monotonic() - started:.0f} s in all[/]")
    return 0 if is_fine else 1


def _prepare(console: Console, stack: LocalStack) -> dict[str, Queue]:
    """The queues that take part, made impatient."""
    definitions = queues.load()
    opened = {}
    for name in sorted(stack.workers):
        url = f"s3://{stack.bucket}/{name}"
        opened[name] = connect(url, settings=definitions[name].settings, client=stack.client("s3"))
        opened[name].configure(rescue_after=RESCUE_SECONDS)
    opened["webhooks"].configure(visibility_timeout=SILENCE_SECONDS, handler_timeout=SILENCE_SECONDS - 1)
    _aside(console, f"Queues: {', '.join(opened)}.")
    _aside(
        console,
        f"Set in queue.json, so that you need not wait a minute: a lost event is rescued after {RESCUE_SECONDS} s, a "
        f"silent worker of webhooks is given up after {SILENCE_SECONDS} s.",
    )
    return opened


def _put_heavy(console: Console, stack: LocalStack, heavy: Sequence[exports.Export]) -> None:
    """The datasets, then the requests: first of all messages, because a Spark run takes its time to start."""
    s3 = stack.client("s3")
    for key, body in exports.datasets():
        s3.put_object(Bucket=stack.bucket, Key=key, Body=body)
    _put(stack, [one.sent for one in heavy])
    console.print(f"{len(heavy)} exports of three datasets (NDJSON, CSV, Parquet) are in {exports.QUEUE}/messages/")
    _aside(
        console,
        "The first event starts a run, on EMR Serverless as this machine has it; the run takes the others.",
    )


def _put(stack: LocalStack, sent: Sequence[Sent]) -> None:
    s3 = stack.client("s3")
    producers = ThreadPoolExecutor(4)
    try:
        puts = [
            producers.submit(
                s3.put_object, Bucket=stack.bucket, Key=one.key, Body=one.body, Metadata=dict(one.metadata)
            )
            for one in sent
        ]
        for put in puts:
            put.result()
    finally:
        # Ctrl-C does not wait for what has not been sent.
        producers.shutdown(cancel_futures=True)


def _kill_worker_of(console: Console, stack: LocalStack, queue: Queue, victim: Sent, receiver: Receiver) -> None:
    """End the Lambda process that is in the middle of a message, as if its machine had died."""
    is_at_work = receiver.is_waited_for.wait(60)
    lease = queue.status(victim.path).lease if is_at_work else None
    process = faults.process_of(stack, victim.queue, lease.owner) if lease else None
    if lease is None or process is None:
        console.print(f"[red]nobody was seen working on {victim.key}, so nobody was killed[/]")
        return
    faults.kill(process)
    console.print(f"{victim.key} waits for a slow endpoint; its lease names {lease.owner}", soft_wrap=True)
    console.print(f"[bold red]kill -9 {process.pid}[/]", highlight=False)
    _aside(console, "Nobody is told. Once the lease has run out, the sweeper gives the message to someone else.")


def _work(
    console: Console, stack: LocalStack, opened: dict[str, Queue], sent: Sequence[Sent], unsent: Sequence[Sent]
) -> None:
    """Enqueue what is not there yet, and watch until everything has ended."""
    watch = Watch(console, opened, sent)
    began = time.monotonic()
    with watch.showing():
        first, rest = unsent[:60], unsent[60:]
        _put(stack, first)
        # The schedule is the stack's own, but its first minute may just have begun; and not before each queue has
        # something to do, because the sweeper leaves an idle one alone until the next minute.
        stack.client("lambda").invoke(FunctionName=stack.sweeper, InvocationType="Event", Payload=b"{}")
        _aside(console, "The sweeper is started by hand this once; every minute from now its schedule does it.")
        _put(stack, rest)
        messages = sum(one.count for one in unsent)
        console.print(f"{messages:,} messages, {len(unsent)} objects, PUT in {time.monotonic() - began:.1f} s")
        if not watch.wait_until_all_ended(PATIENCE_SECONDS):
            console.print(f"[bold red]nothing has moved for {PATIENCE_SECONDS:.0f} s[/]; the log: {HOME.server_log}")


def _sent_by_handlers(console: Console, opened: dict[str, Queue], light: Sequence[Sent]) -> list[Sent]:
    """What handlers have sent in their turn, from the records of what they handled."""
    images = [one for one in light if one.sends]
    more = list(sent_by("thumbnails", (opened["thumbnails"].outcomes.read(one.path) for one in images)))
    _aside(console, f"{len(more)} of the emails were sent by the handler of thumbnails, each with its outcome.")
    return more


def _show_life(console: Console, accounts: Accounts, victim: Sent) -> None:
    record = accounts.records[victim.key]
    if record is None:
        return
    console.print(f"\nThe life of {victim.key}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("attempt", "started", "ended", "how it ended"):
        table.add_column(heading)
    for attempt in record.attempts:
        how = (
            f"{attempt.failure.type}: {attempt.failure.message}"
            if attempt.failure
            else f"completed by {attempt.worker}"
        )
        table.add_row(
            str(attempt.number), f"{attempt.started_at:%H:%M:%S}", f"{attempt.ended_at:%H:%M:%S}", escape(how)
        )
    console.print(table)


def _show_runs(console: Console, stack: LocalStack, queue: Queue) -> None:
    """The runs, once they have closed: the last message's record is a few requests older than that."""
    jobs = _jobs(stack)
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and any(job["state"] not in ENDED for job in jobs.values()):
        time.sleep(0.2)
        jobs = _jobs(stack)
    console.print("\nThe Spark runs, and what their drivers logged")
    for manifest in exports.runs(queue):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(manifest.counts.items()))
        job = jobs.get(manifest.run)
        log = (HOME.emr / job["id"] / "stdout").relative_to(ROOT) if job else "no job of its name"
        seconds = (job["updatedAt"] - job["createdAt"]).total_seconds() if job else 0
        console.print(f"{manifest.run}  {manifest.state}  {counts}  {seconds:.0f} s  {log}", soft_wrap=True)


def _jobs(stack: LocalStack) -> dict[str, Any]:
    """Run → its job, as EMR Serverless tells it."""
    found = stack.client("emr-serverless").list_job_runs(applicationId=LOCAL_APPLICATION)["jobRuns"]
    return {job["name"]: job for job in found}


def _check(console: Console, accounts: Accounts, checks: Sequence[Check]) -> bool:
    for check in checks:
        mark = "[green]✓[/]" if check.is_true else "[bold red]✗[/]"
        console.print(f"{mark} {escape(check.said)}", soft_wrap=True)
    enqueued, completed, dead = accounts.totals()
    is_fine = accounts.is_balanced and all(check.is_true for check in checks)
    said = f"{enqueued:,} messages: {completed:,} completed, {dead} dead, {accounts.missing} missing"
    console.print(
        f"\n[bold green]{said}: as it has to be[/]\n" if is_fine else f"\n[bold red]{said}: this is wrong[/]\n"
    )
    return is_fine


def _show_what_next(console: Console, outbox: Path) -> None:
    table = Table.grid(padding=(0, 3))
    for where, what in (
        ("make up", "the same stack, kept running, for messages of your own"),
        ("functions/queues/emails.py", "a queue is one module like this"),
        ("functions/s3queue/PROTOCOL.md", "why nothing is lost"),
        ("make proof", "and the proof"),
        (str(outbox.relative_to(ROOT)), "the mails that were sent"),
        ("spark/jobs/exports.py", "a heavy queue's job is one module like this"),
        (str(HOME.server_log.relative_to(ROOT)), "what MiniStack and the functions logged"),
        (f"{HOME.emr.relative_to(ROOT)}/*/stdout", "what Spark runs logged, and Spark itself beside it in stderr"),
    ):
        table.add_row(f"  {where}", what)
    console.print("\n[bold]Where to look next[/]", table, sep="\n")


def _aside(console: Console, said: str) -> None:
    console.print(f"[dim]{escape(said)}[/]")
