"""The S3 servers that the tests run against: moto in this process, SeaweedFS beside it.

Both listen on 127.0.0.1 only, forget everything when they end, and leave no process behind, however the run ends.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from support.process_group import process_group

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

HOST = "127.0.0.1"
REGION = "us-east-1"
#: SeaweedFS checks signatures against this pair; moto takes anything.
ACCESS_KEY = SECRET_KEY = "test"

#: Below every system's range for outgoing connections, which could otherwise take a port between choice and use.
_PORTS = range(21_000, 31_000, 10)
_SEAWEEDFS_STARTS_WITHIN_SECONDS = 60


def s3_client(endpoint: str, **overrides: Any) -> S3Client:
    """A client for a test server. `overrides` are botocore Config values (`read_timeout=1`)."""
    settings: dict[str, Any] = {
        "s3": {"addressing_style": "path"},
        "signature_version": "s3v4",
        "retries": {"mode": "standard", "total_max_attempts": 3},
        "connect_timeout": 2,
        "read_timeout": 20,
        "max_pool_connections": 50,
        "proxies": {},  # a proxy that the machine is set to use cannot reach 127.0.0.1
    }
    # A session of its own: boto3's default session is not safe to build clients from in several threads.
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(**(settings | overrides)),
    )


def fresh_bucket(client: S3Client) -> str:
    """Create a bucket that nobody else uses and return its name."""
    name = f"test-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Serve moto's S3 from this process and yield its endpoint.

    Exactly one thread runs moto: with more, two racing conditional writes can both win, which S3 never allows.
    moto keeps its state per process, so two of these in one process show the same buckets, and entering moto's
    `mock_aws` anywhere in the process empties them.
    """
    # Here, not above: moto takes a second to import, and most tests do without it.
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from waitress import wasyncore
    from waitress.server import create_server

    # One thread means that requests queue up; waitress warns about each of them.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)

    sockets: dict[int, Any] = {}
    app = DomainDispatcherApplication(create_backend_app)
    server = create_server(app, map=sockets, host=HOST, port=0, threads=1, connection_limit=1_000)
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            wasyncore.loop(timeout=1, use_poll=True, map=sockets, count=1)

    thread = threading.Thread(target=serve, name="moto", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.effective_port}"
    finally:
        stopping.set()
        server.pull_trigger()
        thread.join()
        server.task_dispatcher.shutdown()
        wasyncore.close_all(sockets)
        get_backend("s3").reset()


@contextlib.contextmanager
def seaweedfs_server() -> Iterator[str]:
    """Start SeaweedFS with an empty store and yield its S3 endpoint, once it accepts writes."""
    with _port_block() as ports, tempfile.TemporaryDirectory(prefix="seaweedfs-", ignore_cleanup_errors=True) as folder:
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
        # SeaweedFS puts these into /tmp whatever it is told, and leaves them there.
        sockets = [
            f"/tmp/seaweedfs-{part}-grpc-{port}.sock"
            for part, port in {"master": master_grpc, "volume": volume_grpc, "filer": filer_grpc, "s3": s3_grpc}.items()
        ]
        command = [
            str(Path(sysconfig.get_path("scripts")) / "weed"),
            "-logtostderr=true",
            "server",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-dir={folder}",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            "-master.telemetry=false",
            # Alone in its cluster, it need not wait for rivals: 3 s to the first write instead of 9.
            "-master.electionTimeout=100ms",
            "-master.heartbeatInterval=30ms",
            # Every bucket takes a volume, and each volume costs nothing until it is written to.
            "-master.volumeSizeLimitMB=64",
            "-volume.max=1000",
            "-volume.minFreeSpace=0",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            "-filer",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            f"-filer.localSocket={folder}/filer.sock",
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={folder}/s3.sock",
        ]
        environment = {
            "HOME": folder,  # no settings from the developer's own
            "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",  # volumes per new bucket; 7 unless told
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        log = Path(folder) / "weed.log"
        with process_group(command, folder=folder, env=environment, log=log, leftovers=[folder, *sockets]) as process:
            endpoint = f"http://{HOST}:{s3}"
            _wait_for_writes(endpoint, process, log)
            yield endpoint


@contextlib.contextmanager
def _port_block() -> Iterator[list[int]]:
    """Yield eight free ports. The block's first port stays bound, so that no other test process takes the block."""
    for first in _PORTS:
        with contextlib.ExitStack() as probes, socket.socket() as guard:
            try:
                guard.bind((HOST, first))
                for port in range(first + 1, first + 9):
                    probes.enter_context(socket.socket()).bind((HOST, port))
            except OSError:
                continue
            probes.close()
            yield list(range(first + 1, first + 9))
            return
    raise RuntimeError(f"no block of free ports between {_PORTS.start} and {_PORTS.stop}")


def _wait_for_writes(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once an object can be written: the S3 port answers seconds before the volumes are ready."""
    client = s3_client(endpoint, retries={"total_max_attempts": 1})
    give_up_at = time.monotonic() + _SEAWEEDFS_STARTS_WITHIN_SECONDS
    error: Exception | None = None
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            bucket = fresh_bucket(client)
            client.put_object(Bucket=bucket, Key="probe", Body=b"ready")
            client.delete_object(Bucket=bucket, Key="probe")
            client.delete_bucket(Bucket=bucket)
            return
        except (BotoCoreError, ClientError) as again:
            error = again
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise RuntimeError(f"SeaweedFS did not start (exit code {process.poll()}, last error: {error}):\n{tail}")
