"""The real CDK CLI, pointed at MiniStack so firmly that it cannot reach an AWS account; and `cli`, which does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from s3queue import __version__

from .. import FUNCTIONS, IS_REPOSITORY, PROJECT, ROOT
from . import toolchain
from .application import read_by_handlers, variables_of
from .home import Home, State
from .ministack.server import ACCOUNT, REGION
from .steps import Steps, run

#: What decides what is deployed. This package only decides where.
INPUTS = ("functions", "infra", "spark", "cdk.json", "requirements-lambda.txt") if IS_REPOSITORY else (".",)
NOT_INPUTS = {"__pycache__", "local"} if IS_REPOSITORY else {"__pycache__", "build", "dist", "cdk.out", "node_modules"}
#: A custom resource that never answers would keep CloudFormation waiting for an hour.
DEPLOY_WITHIN = 300.0


class Cdk:
    """One app: this repository's, unless a test brings its own. `variables` are what its handlers read."""

    def __init__(
        self,
        home: Home,
        steps: Steps,
        *,
        app: Path = PROJECT,
        context: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.steps, self.app = home, steps, app
        self.context = ("target=local", *context)
        self.variables = variables_of(home) if variables is None else variables

    def bootstrap(self, state: State) -> None:
        """Make the account ready for `cdk deploy`.

        Raises:
            StepFailed: with the CLI's last words.
        """
        # Where no cdk.json is: the app need not be synthesized to say what bootstrap knows by itself.
        empty = self.home.scratch / "bootstrap"
        empty.mkdir(parents=True, exist_ok=True)
        self._run("Bootstrap", ["bootstrap", f"aws://{ACCOUNT}/{REGION}"], state, cwd=empty)

    def deploy(self, state: State) -> None:
        """Synthesize and deploy every stack of the app.

        Raises:
            StepFailed: with the CLI's last words, and MiniStack's.
        """
        arguments = ["deploy", "--all", "--require-approval=never", f"--output={self.home.cdk_out}"]
        self._run("Deploy", [*arguments, *self._context()], state, cwd=self.app)

    def synth(self, output: Path, arguments: Sequence[str]) -> None:
        """Write the templates that `cdk deploy` would ship to AWS."""
        command: list[str | Path] = [*toolchain.cdk(self.steps), "synth", "--quiet", f"--output={output}", *arguments]
        with self.steps.step("Synthesize") as step:
            run(step, command, log=self.home.cdk_log, environment=environment(None), cwd=self.app)

    def inputs(self) -> str:
        """A hash that changes when a deployment would."""
        told = (f"{name}={value}" for name, value in sorted(self.variables.items()))
        digest = hashlib.sha256("\0".join([sys.version, __version__, *self.context, *told]).encode())
        for file in _files(self.app):
            content = file.read_bytes()
            digest.update(f"\0{file.relative_to(self.app)}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def stacks(self) -> list[str]:
        """Their names, as last deployed."""
        manifest = json.loads((self.home.cdk_out / "manifest.json").read_text())
        return [
            artifact.get("properties", {}).get("stackName", name)
            for name, artifact in manifest["artifacts"].items()
            if artifact["type"] == "aws:cloudformation:stack"
        ]

    def _context(self) -> Iterator[str]:
        for setting in self.context:
            yield from ("-c", setting)

    def _run(self, title: str, arguments: Sequence[str], state: State, *, cwd: Path) -> None:
        command: list[str | Path] = [*toolchain.cdk(self.steps), *arguments, "--no-notices", "--no-version-reporting"]
        with self.steps.step(title) as step:
            run(
                step,
                command,
                log=self.home.cdk_log,
                environment=environment(state) | dict(self.variables),
                cwd=cwd,
                timeout=DEPLOY_WITHIN,
                watch=self.home.server_log,
            )


def cli(steps: Steps, arguments: Sequence[str]) -> int:
    """The locked CDK CLI in this terminal, with the shell's own credentials: what goes to AWS goes through here."""
    command: list[str | Path] = [*toolchain.cdk(steps), *arguments]
    # It asks before it widens permissions, so it gets the terminal; Ctrl-C reaches it as it reaches us.
    return subprocess.run(command, env={**os.environ, **runs_the_app(os.environ)}, cwd=PROJECT, check=False).returncode


def environment(state: State | None) -> dict[str, str]:
    """The CLI's environment: the shell's, without anything that names an AWS account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_"))}
    if state is not None:
        # What handlers read is `variables`, and nothing that happens to be set here.
        kept = {name: value for name, value in kept.items() if name not in read_by_handlers()}
    kept |= runs_the_app(kept) | {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": REGION,
        "CI": "1",
        "NO_PROXY": ",".join(filter(None, [kept.get("NO_PROXY"), "127.0.0.1", "localhost"])),
    }
    if state is not None:
        kept |= {
            "AWS_ENDPOINT_URL": state.endpoint,
            "AWS_ACCESS_KEY_ID": state.key,
            "AWS_SECRET_ACCESS_KEY": state.secret,
        }
        if state.certificate:
            kept |= {"NODE_EXTRA_CA_CERTS": state.certificate}
    return kept


def runs_the_app(variables: Mapping[str, str]) -> dict[str, str]:
    """What the CDK CLI needs besides, to run the app in this environment of Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    return {
        "PATH": toolchain.path_with_node(path),
        # Of a project of one's own, the library is installed, and the app lies beside its queues.
        **({"PYTHONPATH": os.pathsep.join([str(FUNCTIONS), str(ROOT)])} if IS_REPOSITORY else {}),
        "JSII_NODE": str(toolchain.NODE),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
    }


def _files(app: Path) -> Iterator[Path]:
    for name in INPUTS:
        source = app / name
        if source.is_file():
            yield source
        for folder, folders, files in os.walk(source):
            folders[:] = sorted(one for one in folders if _is_input(Path(folder, one)))
            yield from (Path(folder, file) for file in sorted(files))


def _is_input(folder: Path) -> bool:
    # Hidden folders, and an environment of Python, hold nothing that a deployment reads.
    is_environment = (folder / "pyvenv.cfg").exists()
    return folder.name not in NOT_INPUTS and not folder.name.startswith(".") and not is_environment
