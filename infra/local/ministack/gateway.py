"""Serves MiniStack. Runs inside MiniStack's own environment, so it imports nothing of this repository.

It adds what AWS has, this stack relies on, and MiniStack 1.5.33 lacks. It stops when whoever started it is gone,
however that came about: the starter holds the other end of standard input, and its end is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app
from ministack.core import iam_actions, lambda_runtime
from ministack.services import lambda_svc
from ministack.services.cloudformation import provisioners

#: Answers which functions are at work, and on how many events each.
AT_WORK = "/_s3queue/at-work"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    arguments = parser.parse_args()

    know_conditional_writes()
    accept_metric_math()
    unpack_once()
    threading.Thread(target=end_with_starter, daemon=True).start()
    # A burst of messages is a burst of sockets.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    config = Config()
    config.bind = [f"127.0.0.1:{arguments.port}"]
    config.keep_alive_timeout = 75
    config.certfile, config.keyfile = arguments.certificate, arguments.key
    asyncio.run(serve_until_told(config))


async def serve_until_told(config: Config) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def told() -> None:
        await stop.wait()

    await serve(with_at_work, config, shutdown_trigger=told)


async def with_at_work(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http" or scope["path"] != AT_WORK:
        await app(scope, receive, send)
        return
    _, in_flight = lambda_svc.executions_in_flight()
    body = json.dumps({key.rpartition(":")[2]: count for key, count in in_flight.items()}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def end_with_starter() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    # The Lambda processes are in this group too, and would outlive a plain exit.
    os.killpg(os.getpgrp(), signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)


def know_conditional_writes() -> None:
    """Give policies the keys `s3:if-match` and `s3:if-none-match`: without them a bucket that denies unconditional
    writes denies every write."""
    original = iam_actions._s3_object_context

    def with_conditions(iam_action: str, query_params: dict[str, Any], path: str, headers: dict[str, str]) -> Any:
        context = original(iam_action, query_params, path, headers)
        if iam_action == "s3:PutObject":
            context |= {f"s3:{name}": headers[name] for name in ("if-match", "if-none-match") if headers.get(name)}
        return context

    iam_actions._s3_object_context = with_conditions


def accept_metric_math() -> None:
    """Let CloudFormation create an alarm on a metric-math expression; it is stored, visible, and never evaluated."""
    original = provisioners._cw_metric_alarm_record

    def inert(name: str, props: dict[str, Any]) -> Any:
        if props.get("Metrics"):
            props = {key: value for key, value in props.items() if key != "Metrics"}
            props |= {"Namespace": "s3queue", "MetricName": "metric math is not evaluated on this machine"}
            props["TreatMissingData"] = "notBreaching"
        return original(name, props)

    provisioners._cw_metric_alarm_record = inert


def unpack_once() -> None:
    """Let all processes with the same code share it: unpacking some thousand files for each keeps MiniStack, which is
    one process itself, from answering anyone for seconds, and clearing them away takes as long."""
    shared = Path(tempfile.mkdtemp(prefix="code-"))
    mutex = threading.Lock()

    class Archive(zipfile.ZipFile):
        def extractall(self, path: Any = None, *arguments: Any, **options: Any) -> None:
            target = Path(path)
            if target.name != "code" or self.filename is None:
                super().extractall(path, *arguments, **options)
                return
            unpacked = shared / hashlib.sha256(Path(self.filename).read_bytes()).hexdigest()
            with mutex:
                if not unpacked.exists():
                    super().extractall(f"{unpacked}.unfinished", *arguments, **options)
                    shutil.move(f"{unpacked}.unfinished", unpacked)
            target.rmdir()
            target.symlink_to(unpacked, target_is_directory=True)

    lambda_runtime.zipfile = types.SimpleNamespace(**{**vars(zipfile), "ZipFile": Archive})


if __name__ == "__main__":
    main()
