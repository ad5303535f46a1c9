"""`python -m infra.smoke`: asks, says what it will create and what that costs, waits for a yes, and runs."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType

import botocore.session
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape

import queues
from infra import ROOT
from infra.local.home import Home
from infra.local.steps import StepFailed, Steps

from . import cost, report
from .account import HOME, Account, NotReady
from .emulator import emulator
from .run import smoke

#: To be committed. A rehearsal is written elsewhere: nobody should take it for a run on AWS.
REPORT = ROOT / "docs" / "aws-smoke.md"
MINUTES = 25
#: More than this, and something in the estimate is wrong: it does not even ask.
MOST_DOLLARS = 1.0

Ask = Callable[[str], str]


def main(
    arguments: Sequence[str] | None = None, *, ask: Ask = input, console: Console | None = None, home: Home = HOME
) -> int:
    """0: every path was as it has to be, and nothing is left. 1: not so. 2: nothing was created."""
    parser = argparse.ArgumentParser(prog="make aws-smoke", description="One message down every path, on AWS.")
    parser.add_argument("--profile", help="of ~/.aws/config; asked for if left out")
    parser.add_argument("--region", help="asked for if left out")
    parser.add_argument("--yes", action="store_true", help="do not ask; for scripts")
    parser.add_argument("--local", action="store_true", help="a rehearsal on this machine, without an account")
    parser.add_argument(
        "-c", dest="context", action="append", default=[], type=_setting, help="CDK context, as name=value"
    )
    parser.add_argument("--report", type=Path, help=f"default: {REPORT.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    console = console or Console(highlight=False)
    given = chosen.local or (chosen.profile and chosen.region)
    if not (given and chosen.yes) and not sys.stdin.isatty():
        console.print("There is no terminal to ask in: give --profile, --region and --yes.", markup=False)
        return 2
    name, is_begun = f"s3queue-smoke-{secrets.token_hex(3)}", False
    try:
        with _account(chosen, ask, Steps(console), home) as account:
            context = [*account.check(), *chosen.context]
            if not _is_agreed(account, name, ask, console, is_asked=not chosen.yes):
                console.print("Nothing was created.")
                return 2
            is_begun = True
            told = smoke(account, console, name, context)
    except (NotReady, StepFailed, BotoCoreError, ClientError) as refused:
        console.print(f"[red]{escape(str(refused))}[/]\nNothing was created.", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print(_interrupted(name) if is_begun else "Nothing was created.", soft_wrap=True, markup=False)
        return 130
    target = chosen.report or (REPORT if told.is_aws else home.path / REPORT.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report.markdown(told))
    _say_how_it_ended(console, told, target)
    return 0 if told.is_fine else 1


def _account(chosen: argparse.Namespace, ask: Ask, steps: Steps, home: Home) -> AbstractContextManager[Account]:
    if chosen.local:
        return emulator(steps, home)
    known = botocore.session.Session().available_profiles
    # Always a profile by name: keys in the shell would otherwise win, unseen.
    profile = chosen.profile or ask(f"Profile [default] of {', '.join(known) or 'none'}: ").strip() or "default"
    session = botocore.session.Session(profile=profile)
    configured = session.get_config_variable("region")
    region = chosen.region or ask(f"Region [{configured or ''}]: ").strip() or configured
    if not region:
        raise NotReady("no region was given, and the profile has none")
    return nullcontext(Account(session, region, steps, home))


def _is_agreed(account: Account, name: str, ask: Ask, console: Console, *, is_asked: bool) -> bool:
    """Say what will be created and what it costs, and wait for a yes."""
    console.print(announcement(account.title, name), soft_wrap=True, markup=False)
    return not is_asked or ask("Type yes to go on: ").strip().lower() == "yes"


def announcement(title: str, name: str) -> str:
    """What it will create, what that costs, and what stays.

    Raises:
        NotReady: the estimate is not below a dollar.
    """
    names = [*queues.load(also=["smoke"])]
    lines = cost.forecast(len(names))
    dollars = cost.total(lines)
    if dollars >= MOST_DOLLARS:
        raise NotReady(f"the estimate is ${dollars:.2f}, and should be below ${MOST_DOLLARS:.0f}: it is not started")
    services: dict[str, float] = defaultdict(float)
    for line in lines:
        services[line.what.partition(":")[0]] += line.cost
    parts = ", ".join(f"{service} ${spent:.3f}" for service, spent in sorted(services.items()))
    return f"""
Against: {title}

It creates the stacks {name} and {name}-spark:
  two buckets; {len(names) + 3} functions ({", ".join(names)}; sweeper, API, readers' API), each with a role and a log
  group; alarms, a dashboard, schedules; an EMR Serverless application
It sends about {cost.OBJECTS} objects, starts {cost.RUNS} Spark runs, takes about {MINUTES} minutes, and removes it all
in the end, also after a failure or Ctrl-C. The zip of the functions and Spark's packages stay in the bucket of
`cdk bootstrap`.

It costs about ${dollars:.2f}, at list prices of us-east-1, without log lines and data transfer: {parts}
"""


def _interrupted(name: str) -> str:
    commands = "\n".join(f"  aws cloudformation delete-stack --stack-name {stack}" for stack in (name, f"{name}-spark"))
    return f"The clean-up was interrupted, and nobody looked what is left. Remove it yourself:\n{commands}"


def _say_how_it_ended(console: Console, told: report.Smoke, target: Path) -> None:
    if told.left:
        console.print("\n[bold red]The clean-up did not remove everything. It costs until you do:[/]")
        for thing, command in told.left.things.items():
            console.print(f"  {thing}\n    {command}", soft_wrap=True, markup=False)
        console.print(told.left.why, soft_wrap=True, markup=False)
    said = "every path as it has to be, nothing left" if told.is_fine else "FAILED"
    console.print(f"\n[bold {'green' if told.is_fine else 'red'}]{said}[/]: {escape(str(target))}", soft_wrap=True)


def _setting(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text}: write name=value")
    return text


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    # One way out for Ctrl-C, `kill` and a closed terminal: the clean-up.
    raise KeyboardInterrupt


if __name__ == "__main__":
    for one in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a closed terminal is no reason to stop.
        if signal.getsignal(one) != signal.SIG_IGN:
            signal.signal(one, _as_interrupt)
    sys.exit(main())
