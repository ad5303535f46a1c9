"""`python -m infra.local up | down | status | demo | synth | cdk`; `s3queue up` in a project of one's own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from types import FrameType

from rich.console import Console
from rich.markup import escape

from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from s3queue.stores.s3 import S3Store

from .. import PROJECT
from . import instructions
from .cdk import Cdk, cli
from .down import down
from .home import COMMAND, Home
from .ministack.server import find
from .stack import LocalStack, local_stack
from .steps import StepFailed, Steps


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local", description="The stack on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start it, deploy it, and keep it running until Ctrl-C")
    up.add_argument("-c", dest="context", action="append", default=[], help="CDK context, as name=value")
    up.add_argument("--auth", action="store_true", help="judge every request by IAM, over TLS, as AWS does")
    up.add_argument("--fresh", action="store_true", help="forget port, bucket and data of the last time")
    commands.add_parser("down", help="end the one that is running")
    commands.add_parser("status", help="what is running, and how far its queues are")
    commands.add_parser("demo", help="enqueue a bit of everything and watch it being processed")
    synth = commands.add_parser("synth", help="write the templates that `cdk deploy` ships to AWS")
    synth.add_argument("rest", nargs=argparse.REMAINDER)
    commands.add_parser("cdk", help="the locked CDK CLI, on the AWS account of this shell", add_help=False)
    own = list(sys.argv[1:] if arguments is None else arguments)
    # Whatever follows `cdk` is the CDK's: `--help`, too.
    own, rest = (own[:1], own[1:]) if own[:1] == ["cdk"] else (own, [])
    chosen = parser.parse_args(own)

    console = Console(highlight=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a closed terminal is no reason to stop.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _as_interrupt)
    try:
        match chosen.command:
            case "up":
                return _up(console, auth=chosen.auth, context=chosen.context, fresh=chosen.fresh)
            case "down":
                return _down(console)
            case "status":
                return _status(console)
            case "synth":
                Cdk(Home(), Steps(console)).synth(PROJECT / "cdk.out", chosen.rest)
                return 0
            case "cdk":
                return cli(Steps(Console(stderr=True, highlight=False)), rest)
            case _:
                from .demo.run import demo

                return demo(console)
    except StepFailed as failure:
        console.print(f"[red]{escape(failure.what)}[/]\n")
        console.print(failure.tail, markup=False)
        console.print(f"\nAll of it: {failure.log}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    # One way out for Ctrl-C, `kill` and a closed terminal: every `finally` runs, and with it the clean stop.
    raise KeyboardInterrupt


def _up(console: Console, *, auth: bool, context: Sequence[str], fresh: bool) -> int:
    home = Home()
    if fresh:
        if find(home):
            console.print(f"It is running: end it with `{COMMAND} down`, then start afresh.")
            return 1
        home.start_fresh()
    with local_stack(home, auth=auth, context=context, steps=Steps(console), keep=True) as stack:
        instructions.show(console, stack)
        if not stack.server.owned:
            console.print(f"It was running already; it ends where it was started, or with: {COMMAND} down")
            return 0
        try:
            with _dashboard(stack) as address:
                console.print(f"[bold]dashboard[/] {address}\n\nCtrl-C ends it.", soft_wrap=True)
                while stack.server.alive:
                    time.sleep(1)
        except KeyboardInterrupt:
            console.print()
            with Steps(console).step("Stop"):
                stack.server.stop()
            return 0
    # Someone else ended it, which is how `down` works.
    console.print("MiniStack is gone.")
    return 0


@contextmanager
def _dashboard(stack: LocalStack) -> Iterator[str]:
    """The page over the stack's bucket, in a thread, opened where there is a screen."""
    with Server(build(S3Store(stack.bucket, client=stack.client("s3")))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        # Elsewhere webbrowser would start a text browser in this very terminal.
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in ("darwin", "win32"):
            server.open_browser()
        try:
            yield server.url
        finally:
            server.shutdown()


def _down(console: Console) -> int:
    ended = down(Home())
    console.print(f"Stopped: {', '.join(ended)}." if ended else "Nothing is running.", soft_wrap=True)
    return 0


def _status(console: Console) -> int:
    home = Home()
    server = find(home)
    if server is None:
        console.print(f"Nothing is running. Start it with: {COMMAND} up")
        return 1
    instructions.status(console, LocalStack(server, Cdk(home, Steps(console))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
