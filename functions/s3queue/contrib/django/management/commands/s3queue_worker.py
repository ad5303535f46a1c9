"""`manage.py s3queue_worker`: run the tasks of a backend until it is told to stop."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from s3queue.contrib.django.backend import S3QueueBackend
from s3queue.contrib.django.running import handler_of
from s3queue.contrib.django.tasks import task_backends
from s3queue.errors import QueueError
from s3queue.worker.pull_worker import Worker, check_pace
from s3queue.worker.several import SeveralWorkers


class Command(BaseCommand):
    """One process with threads; start several for several processors."""

    help = (
        "Run the tasks of a backend whose BACKEND is s3queue. SIGTERM and Ctrl-C let running tasks finish. "
        "Example: manage.py s3queue_worker --queue-name emails --concurrency 8"
    )
    requires_system_checks = "__all__"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="an alias of TASKS (default)")
        parser.add_argument(
            "--queue-name", action="append", help="one of its QUEUES; several times for several (all of them)"
        )
        parser.add_argument("--concurrency", type=int, help="tasks at one time, per queue (3)")
        parser.add_argument("--poll-interval", type=float, default=1.0, help="seconds between polls (1)")
        parser.add_argument("--until-empty", action="store_true", help="end when no task can run now")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            workers = self._workers(options)
        except (QueueError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        several, stopping = SeveralWorkers(workers), threading.Event()

        def stop(number: int, frame: Any) -> None:
            stopping.set()

        previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        names = ", ".join(worker.queue.name for worker in workers)
        self.stdout.write(f"working on {names}; Ctrl-C stops after running tasks")
        self.stdout.flush()
        try:
            if options["until_empty"]:
                several.run_until_empty(stopping.is_set)
            else:
                several.run(stopping.is_set, stopping.wait)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self.stdout.write(f"stopped; {several.stats()['processed']} tasks run")

    def _workers(self, options: dict[str, Any]) -> list[Worker]:
        alias, concurrency, interval = options["backend"], options["concurrency"], options["poll_interval"]
        backend = task_backends[alias]
        if not isinstance(backend, S3QueueBackend):
            raise CommandError(f"TASKS[{alias!r}] is not of s3queue, but {type(backend).__name__}")
        check_pace(concurrency, interval)
        names = options["queue_name"] or sorted(backend.queues)
        if unknown := [name for name in names if backend.queues and name not in backend.queues]:
            known = ", ".join(sorted(backend.queues))
            raise CommandError(f"no queue {unknown[0]!r} in TASKS[{alias!r}]; its QUEUES are {known}")
        if not names:
            raise CommandError(f"TASKS[{alias!r}] has no QUEUES; say which with --queue-name")
        workers = []
        for name in names:
            queue = backend.queue(name)
            # Now, not at the first poll: a bucket that is missing or refused is a mistake of the settings.
            queue.store.list(queue.keys.root, limit=1)
            workers.append(Worker(queue, handler_of(backend, name), concurrency=concurrency, poll_interval=interval))
        return workers
