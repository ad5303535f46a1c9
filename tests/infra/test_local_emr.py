"""The stand-in for EMR Serverless answers boto3 as the service does; commands instead of Spark keep this quick."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.local.emr.job_runs import JobRun
from infra.local.emr.memory import mib_of
from infra.local.emr.serverless import EmrServerless
from s3queue.deployment import Deployment
from s3queue.errors import Unavailable
from s3queue.run_memory import RunMemory
from s3queue.settings import QueueSettings
from s3queue.spark_runs.emr_serverless import QUEUE_TAG, RUN_TAG
from s3queue.spark_runs.emr_serverless import EmrServerless as Jobs
from s3queue.spark_runs.service import JobRequest, NotStarted
from spark.runtime import worker_daemon

ROLE = "arn:aws:iam::000000000000:role/spark"
DEPLOYMENT = Deployment(
    bucket="b",
    workers={},
    spark_application="00local0spark0",
    spark_role=ROLE,
    spark_entry_point="s3://assets/drain.py",
    spark_code="s3://assets/code.zip",
    spark_packages="s3://assets/packages.tgz",
    spark_logs="s3://b/analytics/logs/",
)
REQUEST = JobRequest(run="run-1", queue="exports", bucket="b", timeout=timedelta(minutes=30), max_executors=4)


def python(script: str):
    return lambda job: [sys.executable, "-c", script]


@contextmanager
def serving(folder: Path, script: str = "", **options: Any) -> Iterator[tuple[EmrServerless, Jobs, list[dict]]]:
    events: list[dict] = []
    options = {"assets": ["s3://assets/"]} | options
    with EmrServerless(folder, command=python(script), on_change=events.append, **options) as emr:
        config = Config(retries={"total_max_attempts": 1}, read_timeout=5)
        client = boto3.client("emr-serverless", endpoint_url=emr.endpoint, region_name="us-east-1", config=config)
        yield emr, Jobs(client, DEPLOYMENT), events


def ended(jobs: Jobs, job: str, seconds: float = 30) -> str:
    give_up_at = time.monotonic() + seconds
    while (found := jobs.get(job)).phase != "ended":
        assert time.monotonic() < give_up_at, found
        time.sleep(0.02)
    return found.state


def test_a_job_goes_through_its_states_and_tells_of_each(tmp_path):
    with serving(tmp_path) as (_, jobs, events):
        job = jobs.start(REQUEST)
        assert ended(jobs, job) == "SUCCESS"
        found = jobs.get(job)
    assert (found.run, found.queue, found.phase, found.succeeded) == ("run-1", "exports", "ended", True)
    states = [(event["detail"]["previousState"], event["detail"]["state"]) for event in events]
    assert states == [
        ("SUBMITTED", "PENDING"),
        ("PENDING", "SCHEDULED"),
        ("SCHEDULED", "RUNNING"),
        ("RUNNING", "SUCCESS"),
    ]
    assert {event["detail-type"] for event in events} == {"EMR Serverless Job Run State Change"}
    assert {event["detail"]["jobRunId"] for event in events} == {job}


@pytest.mark.parametrize("said", ["sys.exit('no such thing')", "print('no such thing'); sys.exit(1)"])
def test_a_job_that_fails_says_why(tmp_path, said):
    with serving(tmp_path, f"import sys; {said}") as (_, jobs, _events):
        job = jobs.start(REQUEST)
        assert ended(jobs, job) == "FAILED"
        assert "no such thing" in jobs.get(job).details
        assert not jobs.get(job).succeeded


def test_the_same_token_is_the_same_job_and_another_request_with_it_is_refused(tmp_path):
    with serving(tmp_path) as (emr, jobs, _):
        assert jobs.start(REQUEST) == jobs.start(REQUEST)
        other = JobRequest(run="run-1", queue="exports", bucket="b", timeout=timedelta(hours=3), max_executors=4)
        with pytest.raises(NotStarted, match="ConflictException"):
            jobs.start(other)
        assert len(emr.jobs) == 1


def test_throttling_and_lost_answers_on_demand(tmp_path):
    with serving(tmp_path) as (emr, jobs, _):
        emr.throttled = 2
        for _ in range(2):
            with pytest.raises(NotStarted, match="ThrottlingException: Rate exceeded"):
                jobs.start(REQUEST)
        emr.lost_answers = 1
        with pytest.raises(Unavailable):
            jobs.start(REQUEST)
        assert len(emr.jobs) == 1
        assert jobs.start(REQUEST) == next(iter(emr.jobs))


def test_more_than_may_run_wait_their_turn(tmp_path):
    with serving(tmp_path, "import time; time.sleep(30)", max_concurrent_runs=1) as (_, jobs, _events):
        first = jobs.start(REQUEST)
        second = jobs.start(JobRequest(run="run-2", queue="q", bucket="b", timeout=timedelta(hours=1), max_executors=1))
        while (jobs.get(first).state, jobs.get(second).state) != ("RUNNING", "QUEUED"):
            time.sleep(0.02)
        assert jobs.get(second).phase == "starting"
        jobs.cancel(first)
        assert ended(jobs, first) == "CANCELLED"
        while jobs.get(second).state != "RUNNING":
            time.sleep(0.02)


def test_a_job_is_found_by_its_name(tmp_path):
    with serving(tmp_path) as (_, jobs, _events):
        job = jobs.start(REQUEST)
        assert jobs.find("run-1", since=datetime.now(UTC) - timedelta(minutes=1)).id == job
        assert jobs.find("run-1", since=datetime.now(UTC) + timedelta(minutes=1)) is None
        assert jobs.find("run-9", since=datetime.now(UTC) - timedelta(minutes=1)) is None


def test_what_is_not_there_is_not_there(tmp_path):
    with serving(tmp_path) as (emr, jobs, _):
        assert jobs.get("00nothing") is None
        elsewhere = Jobs(jobs.client, replace(DEPLOYMENT, spark_application="00x"))
        with pytest.raises(NotStarted, match="no EMR Serverless application 00x"):
            elsewhere.start(REQUEST)
        with pytest.raises(NotStarted, match="Parameter validation failed"):
            Jobs(jobs.client, replace(DEPLOYMENT, spark_entry_point="")).start(REQUEST)
        with pytest.raises(ClientError, match="ValidationException"):
            jobs.client.start_job_run(applicationId=emr.application, executionRoleArn=ROLE)
        job = jobs.start(REQUEST)
    with pytest.raises((Unavailable, BotoCoreError)):
        jobs.get(job)


def test_the_dashboard_of_a_job_is_what_its_driver_logged(tmp_path):
    with serving(tmp_path, "import sys; print('before'); sys.exit('no such thing')") as (emr, jobs, _):
        job = jobs.start(REQUEST)
        ended(jobs, job)
        url = jobs.client.get_dashboard_for_job_run(applicationId=emr.application, jobRunId=job)["url"]
        with urlopen(url) as answer:
            assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert answer.read() == b"== stdout\nbefore\n\n== stderr\nno such thing\n\n"
        for nothing in ("/logs/00nothing", f"/logs/{job}/code.zip", "/"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"{emr.address}/{emr.logs_token}{nothing}")
        # Whoever is shown a log is not let in: the address gets into a browser's history.
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"{emr.address}/logs/{job}")
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{emr.address}/{emr.logs_token}/applications/{emr.application}/jobruns")
        with pytest.raises(ClientError, match="ResourceNotFoundException"):
            jobs.client.get_dashboard_for_job_run(applicationId=emr.application, jobRunId="00nothing")


def asked(emr: EmrServerless, *, entry_point: str = "s3://assets/drain.py", parameters: str = "") -> bytes:
    """StartJobRun as anybody on this machine can write it."""
    spark = {"entryPoint": entry_point, "entryPointArguments": [], "sparkSubmitParameters": parameters}
    token = str(time.monotonic_ns())
    return json.dumps({"clientToken": token, "executionRoleArn": ROLE, "jobDriver": {"sparkSubmit": spark}}).encode()


def post(emr: EmrServerless, *, token: str | None = None, body: bytes | None = None, **headers: str) -> int:
    given = {"Host": urlsplit(emr.address).netloc, "Content-Type": "application/json"}
    given |= {name.replace("_", "-"): text for name, text in headers.items()}
    connection = HTTPConnection(urlsplit(emr.address).netloc, timeout=10)
    path = f"/applications/{emr.application}/jobruns"
    try:
        sent = asked(emr) if body is None else body
        connection.request("POST", f"/{emr.token}{path}" if token is None else f"{token}{path}", sent, given)
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_who_knows_the_token_of_this_start_is_let_in(tmp_path):
    with serving(tmp_path) as (emr, _, _events), serving(tmp_path) as (other, _, _more):
        assert post(emr) == 200
        # Another user of this machine, and one who knew an earlier start.
        for token in ("", "/", "/test", f"/{other.token}", f"/{emr.logs_token}", f"/{emr.token}x"):
            assert post(emr, token=token) == 403, token
        for method in ("GET", "DELETE"):
            connection = HTTPConnection(urlsplit(emr.address).netloc, timeout=10)
            connection.request(method, f"/applications/{emr.application}/jobruns/{next(iter(emr.jobs))}")
            assert connection.getresponse().status == 403
            connection.close()
        assert len(emr.jobs) == 1


def test_no_page_in_a_browser_starts_a_job_even_if_it_knew_the_token(tmp_path):
    with serving(tmp_path) as (emr, _, _events):
        # A cross-site form can send these, and nothing else, without being asked.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            assert post(emr, Content_Type=kind) == 415, kind
        assert post(emr, Origin="http://evil.example") == 403
        assert post(emr, Origin="null") == 403
        assert post(emr, Origin="http://127.0.0.1:1") == 403
        assert post(emr, Sec_Fetch_Site="cross-site") == 403
        assert post(emr, Sec_Fetch_Site="same-site") == 403
        # A name that its owner makes resolve to 127.0.0.1.
        assert post(emr, Host="evil.example") == 421
        assert post(emr, Host=f"evil.example:{urlsplit(emr.address).port}") == 421
        assert emr.jobs == {}
        assert (
            post(emr, Host=f"localhost:{urlsplit(emr.address).port}", Content_Type="application/json; charset=utf-8")
            == 200
        )


def test_a_body_that_was_not_read_is_not_the_next_request(tmp_path):
    with serving(tmp_path) as (emr, _, _events):
        host = urlsplit(emr.address).netloc
        body = asked(emr)
        inner = (
            f"POST /{emr.token}/applications/{emr.application}/jobruns HTTP/1.1\r\nHost: {host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        outer = (
            f"POST /x HTTP/1.1\r\nHost: {host}\r\nContent-Type: text/plain\r\nContent-Length: {len(inner)}\r\n\r\n"
        ).encode()
        with socket.create_connection((urlsplit(emr.address).hostname, urlsplit(emr.address).port), timeout=10) as raw:
            raw.sendall(outer + inner)
            said = b""
            with contextlib.suppress(ConnectionResetError):
                while read := raw.recv(65536):
                    said += read
        assert said.count(b"HTTP/1.1 ") <= 1
        assert emr.jobs == {}


@pytest.mark.parametrize(
    ("entry_point", "parameters"),
    [
        ("file:///tmp/anything.py", ""),
        ("/tmp/anything.py", ""),
        ("s3://b/exports/results/anything.py", ""),
        ("s3://assets.example/anything.py", ""),
        ("s3://assets/../b/anything.py", ""),
        ("", ""),
        ("s3://assets/drain.py", "--py-files file:///tmp/anything.zip"),
        ("s3://assets/drain.py", "--py-files s3://assets/code.zip,/tmp/anything.zip"),
        ("s3://assets/drain.py", "--py-files=/tmp/anything.zip"),
        ("s3://assets/drain.py", "--jars /tmp/anything.jar"),
        ("s3://assets/drain.py", "--conf spark.jars=/tmp/anything.jar"),
        ("s3://assets/drain.py", "--conf spark.driver.extraJavaOptions=-javaagent:/tmp/anything.jar"),
        ("s3://assets/drain.py", "--conf spark.submit.pyFiles=/tmp/anything.zip"),
        ("s3://assets/drain.py", "--conf spark.pyspark.python=/tmp/anything"),
        ("s3://assets/drain.py", "--conf spark.sql.extensions=Anything"),
    ],
)
def test_nothing_but_the_stacks_own_assets_is_run(tmp_path, entry_point, parameters):
    with serving(tmp_path) as (emr, _, _events):
        assert post(emr, body=asked(emr, entry_point=entry_point, parameters=parameters)) == 400
        assert emr.jobs == {}


def test_a_client_that_is_killed_in_the_middle_leaves_no_stack_trace(tmp_path, capfd):
    hung_up = threading.Event()
    with serving(tmp_path) as (emr, _, _):
        shut = emr._server.shutdown_request
        emr._server.shutdown_request = lambda request: (shut(request), hung_up.set())
        address = urlsplit(emr.address)
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(b"POST /applications HTTP/1.1\r\nContent-Le")
            # As the kernel does for a process that has died: a reset, not an end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert hung_up.wait(30)

    assert "Traceback" not in capfd.readouterr().err


def test_without_assets_nothing_runs(tmp_path):
    with serving(tmp_path, assets=[]) as (emr, jobs, _events):
        with pytest.raises(NotStarted, match="none of this stack's assets"):
            jobs.start(REQUEST)
        assert emr.jobs == {}


def test_a_job_finds_its_code_where_workers_are_started(tmp_path):
    code = tmp_path / "code.zip"
    code.write_bytes(b"")
    job = JobRun(
        id="00",
        application="00",
        request={"jobDriver": {"sparkSubmit": {"entryPoint": "e.py", "sparkSubmitParameters": f"--py-files {code}"}}},
        folder=tmp_path,
        environment={},
        changed=lambda job, before: None,
        fetch=lambda uri, folder: folder / Path(uri).name,
    )
    command = job.spark_submit()
    # The workers' parent is a module of ours, and starts before Spark sends them any code.
    assert f"spark.python.daemon.module={worker_daemon.__name__}" in command
    assert f"spark.executorEnv.PYTHONPATH={code}" in command


def test_leaving_ends_every_job(tmp_path):
    with serving(tmp_path, "import time; time.sleep(600)") as (emr, jobs, _):
        job = jobs.start(REQUEST)
        while jobs.get(job).state != "RUNNING":
            time.sleep(0.02)
        process = emr.jobs[job].process
    assert process.poll() is not None
    assert not [thread for thread in threading.enumerate() if thread.name == job]


def test_the_request_caps_executors_and_time_and_names_code_packages_logs_and_tags():
    asked = Jobs(None, DEPLOYMENT).described(REQUEST)

    assert asked["clientToken"] == asked["name"] == "run-1"
    # What the driver starts at the end of its budget may take as long again; then it closes its slot.
    assert asked["executionTimeoutMinutes"] == 65
    assert asked["tags"] == {QUEUE_TAG: "exports", RUN_TAG: "run-1"}
    spark = asked["jobDriver"]["sparkSubmit"]
    assert spark["entryPoint"] == "s3://assets/drain.py"
    assert spark["entryPointArguments"][-2:] == ["--seconds", "1800"]
    assert "--py-files s3://assets/code.zip" in spark["sparkSubmitParameters"]
    assert "spark.dynamicAllocation.maxExecutors=4" in spark["sparkSubmitParameters"]
    assert "spark.archives=s3://assets/packages.tgz#packages" in spark["sparkSubmitParameters"]
    monitoring = asked["configurationOverrides"]["monitoringConfiguration"]
    assert monitoring["s3MonitoringConfiguration"] == {"logUri": "s3://b/analytics/logs/"}


def test_the_request_has_the_memory_that_the_queue_asks_for():
    settings = QueueSettings.of(engine="spark", executor_memory_mib=1024, executor_python_mib=7000)
    request = JobRequest.of("run-1", "exports", "b", settings)

    asked = Jobs(None, DEPLOYMENT).described(request)["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"]

    assert "spark.executor.memory=1024m" in asked
    assert "spark.executor.memoryOverhead=7000m" in asked
    assert "spark.driver.memory=2048m" in asked
    assert "spark.driver.memoryOverhead=3072m" in asked


#: A process with some megabytes of its own; what it is told behind that makes it look like Spark's.
EATS = "import time; eaten = b'x' * (int({mib}) * 1024 * 1024); time.sleep(60)"
#: A job whose executor has a daemon with a worker; it ends as its worker does.
EXECUTOR = """
import subprocess, sys
worker = "import subprocess, sys; sys.exit(-subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
daemon = subprocess.run([sys.executable, "-c", worker, {eats!r}, "-m", "pyspark.daemon"])
print("the worker ended with signal", daemon.returncode)
sys.exit(7)
"""
#: A job whose JVM has started the driver's Python.
DRIVER = """
import subprocess, sys
sys.exit(-subprocess.run([sys.executable, "-c", {eats!r}]).returncode)
"""


@pytest.mark.parametrize(("place", "script"), [("executor", EXECUTOR), ("driver", DRIVER)])
def test_python_that_has_more_memory_than_it_would_have_on_emr_is_killed(tmp_path, place, script):
    eats = EATS.format(mib=500)
    request = replace(REQUEST, memory=RunMemory(**{f"{place}_python": 400}))
    with serving(tmp_path, script.format(eats=eats)) as (emr, jobs, _):
        job = jobs.start(request)
        assert ended(jobs, job, seconds=60) == "FAILED"
        details = jobs.get(job).details
        assert f"the {place}'s Python was killed" in details
        assert f"spark.{place}.memoryOverhead is 400m" in details
        assert f"{place}_python_mib" in details
        assert emr.jobs[job].memory.peaks[place] > 400
        assert "was killed" in emr.jobs[job].log.read_text()
        if place == "executor":
            assert "ended with signal 9" in emr.jobs[job].output.read_text()


def test_python_that_has_less_memory_than_it_may_is_left_alone(tmp_path):
    eats = EATS.format(mib=100).replace("sleep(60)", "sleep(2)")
    with serving(tmp_path, EXECUTOR.format(eats=eats)) as (emr, jobs, _):
        job = jobs.start(replace(REQUEST, memory=RunMemory(executor_python=400)))
        ended(jobs, job)
        assert "ended with signal 0" in emr.jobs[job].output.read_text()
        assert 90 < emr.jobs[job].memory.peaks["executor"] < 400


@pytest.mark.parametrize(
    ("said", "mib"), [("3g", 3072), ("384m", 384), ("2048", 2048), ("1048576k", 1024), ("1T", 2**20)]
)
def test_sizes_are_read_as_spark_reads_them(said, mib):
    assert mib_of(said) == mib


def test_the_local_jvm_is_a_driver_and_an_executor_of_the_size_that_was_asked_for(tmp_path):
    asked = Jobs(None, DEPLOYMENT).described(replace(REQUEST, memory=RunMemory(executor_heap=3000)))
    job = JobRun(
        id="a",
        application="b",
        request=asked,
        folder=tmp_path,
        environment={},
        changed=lambda job, before: None,
        fetch=lambda uri, folder: folder / Path(uri).name,
    )
    command = job.spark_submit()
    assert "local[2]" in command
    assert "spark.driver.memory=3000m" in command


def test_an_application_is_stopped_when_no_run_is_under_way_and_starts_with_the_next(tmp_path):
    with serving(tmp_path, "import time; time.sleep(60)") as (_, jobs, _events):
        application = {"applicationId": jobs.deployment.spark_application}

        def state() -> str:
            return jobs.client.get_application(**application)["application"]["state"]

        assert state() == "CREATED"
        job = jobs.start(REQUEST)
        assert state() == "STARTED"
        with pytest.raises(ClientError, match="runs are under way"):
            jobs.client.stop_application(**application)
        jobs.cancel(job)
        assert ended(jobs, job) == "CANCELLED"
        jobs.client.stop_application(**application)
        assert state() == "STOPPED"
        jobs.start(replace(REQUEST, run="run-2"))
        assert state() == "STARTED"
