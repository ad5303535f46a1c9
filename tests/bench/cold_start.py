"""Cold start: what each function costs before its first message, in fresh processes of the packaged code.

Interpreter and site are left out, as they are the same for all: the clock starts at the first import. CPU time, because
a Lambda function has a fraction of a core while it starts, and because a noisy neighbour does not change it much.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import queues
from infra.packaging.lambda_zip import prepare
from infra.packaging.platforms import Platform
from s3queue.deployment import Deployment
from support.s3_servers import ACCESS_KEY, REGION, fresh_bucket, s3_client, seaweedfs_server

from .instruments.harness import Bench, Part

#: Of the library, by themselves: what a worker function needs besides its queue.
MODULES = ("s3queue.worker.notifications", "s3queue.spark_runs.runs", "s3queue.worker.invocation")
#: What every child process ends with: its cost since its first line, and the packages that it holds.
PROBE = """
import time as _time
_began = _time.perf_counter(), _time.process_time()
{code}
_ended = _time.perf_counter(), _time.process_time()
import json as _json, sys as _sys
_peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
_packages = sorted({{name.partition(".")[0] for name in _sys.modules}} - _sys.stdlib_module_names)
print(_json.dumps({{
    "wall_ms": (_ended[0] - _began[0]) * 1000, "cpu_ms": (_ended[1] - _began[1]) * 1000, "rss_mib": int(_peak) / 1024,
    "modules": len(_sys.modules), "packages": _packages,
}}))
"""
BARE_BOTO3 = "import boto3\nclient = boto3.client('s3')"
#: One request each, in the least code that makes it.
BOTO3_PUT = BARE_BOTO3 + "\nclient.put_object(Bucket={bucket!r}, Key='boto3', Body=b'x')"
AWSCRT_PUT = """
import os, urllib.parse
from io import BytesIO
from awscrt import auth, http, io
where = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
bootstrap = io.ClientBootstrap.get_or_create_static_default()
headers = http.HttpHeaders([("host", where.netloc), ("content-length", "1")])
request = http.HttpRequest("PUT", "/{bucket}/awscrt", headers)
request.body_stream = BytesIO(b"x")
keys = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
signing = auth.AwsSigningConfig(
    algorithm=auth.AwsSigningAlgorithm.V4, signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS, service="s3",
    credentials_provider=auth.AwsCredentialsProvider.new_static(*keys), region=os.environ["AWS_REGION"],
    use_double_uri_encode=False, should_normalize_uri_path=False,
    signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
    signed_body_value=auth.AwsSignedBodyValue.UNSIGNED_PAYLOAD,
)
auth.aws_sign_request(request, signing).result()
statuses = []
connection = http.HttpClientConnection.new(where.hostname, where.port, bootstrap).result()
connection.request(request, lambda http_stream, status_code, headers, **_: statuses.append(status_code)).activate()
while not statuses:
    _time.sleep(0.0002)
assert statuses == [200], statuses
"""
FIRST_MESSAGE = """
import handlers.worker
class Context:
    aws_request_id = "bench"
    get_remaining_time_in_millis = lambda self: 60_000
assert handlers.worker.handle({event!r}, Context()) == {{"completed": 1}}
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A fresh Python that has what Lambda would have: the package, its environment, and nothing else."""

    package: Path | str
    environment: Mapping[str, str]

    def run(self, code: str, **environment: str) -> dict[str, Any]:
        done = subprocess.run(
            # -S: what a developer's site-packages hold or start is not in the zip.
            [sys.executable, "-S", "-P", "-B", "-c", PROBE.format(code=code)],
            env={"PATH": os.defpath, "PYTHONPATH": str(self.package), **self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{code.strip().splitlines()[0]} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def run(bench: Bench) -> None:
    with bench.part("cold_start", "Cold start: the functions as packaged, against a bare boto3 client") as part:
        package = prepare(Platform.of("local"))
        with seaweedfs_server() as endpoint, TemporaryDirectory() as folder:
            # Not told of a server: towards AWS, a store that speaks TLS has certificates to load.
            imports(bench, part, Process(package, _environment()))
            process = Process(with_awscrt(package, Path(folder)), _environment() | {"AWS_ENDPOINT_URL": endpoint})
            _first_requests(bench, process, fresh_bucket(s3_client(endpoint)))
            _first_messages(bench, part, process, endpoint, Path(folder))
        bench.series("the zip that all functions share", [zip_mib(package)], unit="MiB")


def imports(bench: Bench, part: Part, process: Process) -> None:
    """Import and init phase of every function, in turns with a bare client."""
    cases: dict[str, tuple[str, dict[str, str]]] = {f"{module}, imported": (module, {}) for module in MODULES}
    cases |= {f"worker of {queue}, direct": ("handlers.worker", _deployed(queue)) for queue in queues.load()}
    cases |= {"worker of emails, boto3": ("handlers.worker", _deployed("emails", store="boto3"))}
    cases |= {f"{function}, direct": (f"handlers.{function}", _deployed()) for function in ("sweeper", "api")}
    for what, (module, environment) in cases.items():
        pairs = [
            (process.run(f"import {module}", **environment), process.run(BARE_BOTO3)) for _ in range(bench.repetitions)
        ]
        part.raw[what] = [{"ours": mine, "bare boto3 client": theirs} for mine, theirs in pairs]
        for quantity, unit in (("cpu_ms", "ms CPU"), ("rss_mib", "MiB")):
            figures = [(mine[quantity], theirs[quantity]) for mine, theirs in pairs]
            bench.pair(what, figures, "a bare boto3 client", unit=unit, better="less")


def _first_requests(bench: Bench, process: Process, bucket: str) -> None:
    def cost(code: str) -> float:
        return float(process.run(code.replace("{bucket!r}", repr(bucket)).replace("{bucket}", bucket))["cpu_ms"])

    bench.compare(
        "awscrt: import, connect, one PUT",
        lambda: cost(AWSCRT_PUT),
        "boto3: the same",
        lambda: cost(BOTO3_PUT),
        unit="ms CPU",
        better="less",
    )


def _first_messages(bench: Bench, part: Part, process: Process, endpoint: str, folder: Path) -> None:
    """From the first import to the end of the first message, S3 requests included, with either store."""
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)
    found: dict[str, list[dict[str, Any]]] = {"boto3": [], "direct": []}
    for turn in range(bench.repetitions):
        for store, runs in found.items():
            key = f"emails/messages/{store}-{turn}.json"
            client.put_object(Bucket=bucket, Key=key, Body=b'{"to": "ada@example.com", "subject": "Hello"}')
            environment = {**_deployed("emails", bucket=bucket, store=store), "EMAIL_OUTBOX": str(folder)}
            runs.append(process.run(FIRST_MESSAGE.format(event=event(bucket, key)), **environment))
    part.raw["first message"] = found
    what, against = "worker of emails, direct, to its first outcome", "boto3"
    for quantity, unit in (("cpu_ms", "ms CPU"), ("wall_ms", "ms"), ("rss_mib", "MiB")):
        ours, theirs = ([run[quantity] for run in found[store]] for store in ("direct", "boto3"))
        bench.pair(what, [*zip(ours, theirs, strict=True)], against, unit=unit, better="less")


def event(bucket: str, key: str) -> dict[str, Any]:
    """What S3 sends when an object was created."""
    where = {"bucket": {"name": bucket}, "object": {"key": key, "size": 52}}
    at = datetime.now(UTC).isoformat()
    return {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "eventTime": at, "s3": where}]}


def zip_mib(package: Path) -> float:
    """As the CDK zips and Lambda counts it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "package.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for file in package.rglob("*"):
                zipped.write(file, file.relative_to(package))
        return path.stat().st_size / 2**20


def with_awscrt(package: Path, folder: Path) -> Path | str:
    """The package, with awscrt beside it where it holds none. Apart from the rest: boto3 loads it wherever it is."""
    if (package / "awscrt").exists():
        return package
    beside = folder / "awscrt-alone"
    beside.mkdir()
    for name in ("awscrt", "_awscrt"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (beside / source.name).symlink_to(source)
    return f"{package}:{beside}"


def _deployed(queue: str = "", *, bucket: str = "bucket", store: str = "direct") -> dict[str, str]:
    """The environment of a function in Lambda's init phase."""
    workers = {name: f"s3queue-{name}" for name in queues.load()}
    deployment = Deployment(bucket=bucket, queue=queue, workers=workers, spark_application="application")
    return {"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "S3QUEUE_STORE": store, **deployment.to_env()}


def _environment() -> dict[str, str]:
    return {
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": ACCESS_KEY,
        "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
        "POWERTOOLS_SERVICE_NAME": "s3queue",
        "POWERTOOLS_METRICS_NAMESPACE": "s3queue",
    }
