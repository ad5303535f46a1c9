"""Where a run takes place: its bucket behind the proxy, the services beside it, and what a process needs to be there.

Platform times are scaled, since a run of half a minute should see what a day sees: a sweeper's minute lasts nine
seconds, and so on. The code that keeps them is the shipped one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import queues
from s3queue import Deployment, Queue, connect
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY

from . import history, observed

#: Queues, by who works on them: pull workers; a worker function; Spark runs that a worker function launches.
PULLED, SERVED, HEAVY = QUEUES = ("pulled", "served", "heavy")
#: Queue → its worker function. The pull workers' queue has none, and they sweep it themselves.
WORKERS = {SERVED: "served-worker", HEAVY: "heavy-worker"}
SWEEPER = "sweeper"
APPLICATION = "application"
ASSETS = "s3://assets/"
#: A function is killed after this long; the sweeper comes this often, and stays for that long.
FUNCTION_SECONDS = 12.0
SWEEPER_SECONDS = 30.0
MINUTE_SECONDS = 9.0
STAYS_SECONDS = 8.0
#: After this long, a function that launches a Spark run is over; see `s3queue.spark_runs.watch`.
LAUNCH_GRACE = timedelta(seconds=FUNCTION_SECONDS + 3)


@dataclass(frozen=True, slots=True)
class Place:
    """All that a process has to be told."""

    #: Of the proxy.
    endpoint: str
    bucket: str
    #: Which S3 client: boto3 or direct.
    store: str
    folder: str
    #: Of Lambda and EMR Serverless.
    lambda_endpoint: str
    emr_endpoint: str

    def environment(self, queue: str = "") -> dict[str, str]:
        deployment = Deployment(
            bucket=self.bucket,
            queue=queue,
            workers=WORKERS,
            spark_application=APPLICATION,
            spark_role="arn:aws:iam::000000000000:role/spark",
            spark_entry_point=f"{ASSETS}drain.py",
        )
        return deployment.to_env() | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_LAMBDA": self.lambda_endpoint,
            "AWS_ENDPOINT_URL_EMR_SERVERLESS": self.emr_endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
            "S3QUEUE_STORE": self.store,
            "POWERTOOLS_METRICS_DISABLED": "true",
        }

    def queue(self, name: str, worker_id: str = "") -> Queue:
        """A queue as a process of this run connects to it: through the proxy, with the run's S3 client."""
        settings = queues.load_one(name).settings
        return connect(f"s3://{self.bucket}/{name}", settings=settings, worker_id=worker_id)

    def enter(self, role: str, queue: str = "") -> None:
        """Make this process one of the run: environment, log, history, observed classes, scaled times."""
        # A paused process cannot see that its parent is gone; the kernel can.
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        os.environ.update(self.environment(queue))
        log = os.open(Path(self.folder) / f"{role}-{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
        logging.getLogger("botocore").setLevel(logging.WARNING)
        history.begin(self.folder, role)
        add_queues()
        scale()
        observed.observe()

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


def add_queues() -> None:
    """The queues of the run, beside the application's own: functions find them as they find those."""
    ours = str(Path(__file__).parent / "queues")
    if ours not in queues.__path__:
        queues.__path__.append(ours)


def scale() -> None:
    """Shorten what is made for minutes."""
    from handlers import sweeper
    from s3queue.spark_runs import launcher, slots, watch

    scaled: dict[ModuleType, dict[str, object]] = {
        sweeper: {"SWEEPER_STAYS_SECONDS": STAYS_SECONDS, "LAST_SWEEP_SECONDS": 6.0, "AGAIN_SECONDS": 2.0},
        watch: {"LAUNCH_GRACE": LAUNCH_GRACE, "ASK_SECONDS": 3.0},
        slots: {"COOL": timedelta(seconds=3), "MOST_COOL": timedelta(seconds=6)},
        launcher: {"LAUNCH_GRACE": LAUNCH_GRACE},
    }
    for module, values in scaled.items():
        for name, value in values.items():
            # A name that is gone would leave the run unscaled, and nobody would notice.
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, value)
