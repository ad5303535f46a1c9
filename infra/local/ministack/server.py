"""MiniStack as a process: started on a free port of 127.0.0.1, found again by a second `make up`, ended for good."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from .. import toolchain
from ..home import Home, State
from ..processes import command_of, end_group
from ..steps import TAIL_LINES, StepFailed, Steps
from .certificate import write_certificate

GATEWAY = Path(__file__).parent / "gateway.py"
READY_WITHIN = 60.0
#: As gateway.py knows it.
SECRET_HEADER = "x-s3queue-secret"
#: As gateway.py knows it: writes down what MiniStack knows.
SAVE = "/_s3queue/save"
SAVED_WITHIN = 15.0
REGION = "us-east-1"
ACCOUNT = "000000000000"


class Server:
    """A running MiniStack. Whoever started it ends it; others only use it."""

    def __init__(self, home: Home, state: State, process: subprocess.Popen[bytes] | None = None) -> None:
        self.home, self.state, self._process = home, state, process

    @property
    def owned(self) -> bool:
        return self._process is not None

    @property
    def alive(self) -> bool:
        return _is_ours(self.state)

    def stop(self) -> None:
        """End MiniStack and every Lambda process.

        Raises:
            RuntimeError: something survived.
        """
        self.save()
        # The group, not the process: MiniStack ignores SIGTERM at times, and its Lambda processes outlive it and spin.
        # With little patience: what is to be kept is saved.
        end_group(self.state.pid, grace=1)
        if self._process and self._process.stdin:
            self._process.stdin.close()
        shutil.rmtree(self.home.scratch, ignore_errors=True)
        self.home.forget()

    def save(self) -> None:
        """Let MiniStack write down what it knows, if it is to be found again; objects are on the disk already."""
        if self.state.keeps:
            with contextlib.suppress(OSError):
                ask(self.state, SAVE, patience=SAVED_WITHIN)


def find(home: Home) -> Server | None:
    """The MiniStack that already runs here."""
    state = home.state()
    if state is None:
        return None
    if _is_ours(state):
        return Server(home, state)
    # Whoever kept it was killed; the gateway ended itself with it.
    home.forget()
    return None


def kept_or_new(home: Home, *, auth: bool, keep: bool) -> State:
    """Who the next MiniStack will be: the one that was kept, as far as it still can, or a new one."""
    before = home.kept_state() if keep else None
    if before and before.auth != auth:
        # Its bucket has other policies, and its endpoint another scheme.
        home.start_fresh()
        before = None
    port = before.port if before and _is_free(before.port) else _free_port()
    emr_port = before.emr_port if before and _is_free(before.emr_port) else _free_port()
    was_saved = (home.kept / "state" / "cloudformation.json").is_file()
    return State(
        pid=0,
        port=port,
        endpoint=f"{'https' if auth else 'http'}://127.0.0.1:{port}",
        starter=0,
        auth=auth,
        key=before.key if before else f"LOCAL{secrets.token_hex(8).upper()}",
        secret=before.secret if before else secrets.token_hex(20),
        emr_port=emr_port,
        emr_token=before.emr_token if before else secrets.token_hex(20),
        deployed=before.deployed if before and was_saved else "",
        keeps=keep,
    )


def start(home: Home, steps: Steps, *, auth: bool = False, keep: bool = False) -> Server:
    """Start MiniStack and wait until it answers. With `keep`, it finds the data of the last one that did, and its port.

    With `auth`, every request is signed and judged by IAM as AWS would, over TLS, because the buckets refuse anything
    else.

    Raises:
        StepFailed: it did not come up; the log says why.
    """
    python = toolchain.ministack(steps)
    with steps.step("Start MiniStack") as step:
        shutil.rmtree(home.scratch, ignore_errors=True)
        home.scratch.mkdir(parents=True)
        state = kept_or_new(home, auth=auth, keep=keep)
        port = state.port
        command: list[str | Path] = [python, GATEWAY, f"--port={port}"]
        environment = _environment(home, port)
        # Whom MiniStack takes for root. Functions are given credentials of their own.
        environment |= {"AWS_ACCESS_KEY_ID": state.key, "AWS_SECRET_ACCESS_KEY": state.secret}
        # MiniStack knows no EMR Serverless; its functions ask ours, and boto3 alone knows.
        environment |= {"AWS_ENDPOINT_URL_EMR_SERVERLESS": state.emr_endpoint}
        if keep:
            kept = home.kept.absolute()
            kept.mkdir(parents=True, exist_ok=True, mode=0o700)
            environment |= {"PERSIST_STATE": "1", "STATE_DIR": str(kept / "state")}
            environment |= {"S3_PERSIST": "1", "S3_DATA_DIR": str(kept / "data")}
            command.append("--keep-throttled")
        certificate = ""
        if auth:
            pair = write_certificate(home.path)
            certificate = str(pair.certificate)
            command += [f"--certificate={pair.certificate}", f"--key={pair.key}"]
            environment |= {"AUTH": "true", "USE_SSL": "1"}
            environment |= {"MINISTACK_SSL_CERT": certificate, "MINISTACK_SSL_KEY": str(pair.key)}
        with home.server_log.open("wb") as log:
            process = subprocess.Popen(
                command,
                # Held open for as long as we live; see gateway.py.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=home.scratch,
                start_new_session=True,
            )
        state = replace(state, pid=process.pid, starter=os.getpid(), certificate=certificate)
        server = Server(home, state, process)
        try:
            while not is_ready(state):
                if process.poll() is not None or step.seconds > READY_WITHIN:
                    tail = home.server_log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
                    raise StepFailed("MiniStack did not come up", log=home.server_log, tail="\n".join(tail))
                step.show()
                time.sleep(0.1)
            home.remember(state)
            if keep:
                home.keep(state)
        except BaseException:
            server.stop()
            raise
    return server


def is_ready(state: State) -> bool:
    """Whether it answers."""
    try:
        return ask(state, "/_ministack/ready")[0] == 200
    except OSError:
        return False


def ask(state: State, path: str, *, patience: float = 5) -> tuple[int, bytes]:
    """GET something that is not of AWS.

    Raises:
        OSError: nobody answers.
    """
    connection = http.client.HTTPConnection("127.0.0.1", state.port, timeout=patience)
    if state.certificate:
        trust = ssl.create_default_context(cafile=state.certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", state.port, timeout=patience, context=trust)
    try:
        connection.request("GET", path, headers={SECRET_HEADER: state.secret})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def _environment(home: Home, port: int) -> dict[str, str]:
    # Not ours with additions: Lambda functions inherit it, and what a developer's shell is logged in to is none of
    # their business.
    return {
        "PATH": toolchain.path_with_node(os.defpath),
        "HOME": str(home.scratch),
        "TMPDIR": str(home.scratch),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_REGION": REGION,
        # It would listen on fixed ports for these, and look after containers in the Docker of this machine.
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "DOCKER_HOST": f"unix://{home.scratch}/no-docker",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As MiniStack itself does: connections that have just ended do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_ours(state: State) -> bool:
    # A process id is reused in time; a command line with this file and this port is not.
    command = command_of(state.pid)
    return str(GATEWAY) in command and f"--port={state.port}" in command
