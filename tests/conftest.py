"""Fixtures that every test may ask for, and a fence: no test can reach an AWS account."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from support.api_models import check_every_call
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, moto_server, seaweedfs_server

# At import, before anything builds a client: what a developer's shell is logged in to must never be touched.
for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
    del os.environ[name]
os.environ.update(
    AWS_ACCESS_KEY_ID=ACCESS_KEY,
    AWS_SECRET_ACCESS_KEY=SECRET_KEY,
    AWS_REGION=REGION,
    AWS_DEFAULT_REGION=REGION,
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    AWS_EC2_METADATA_DISABLED="true",
    NO_PROXY="127.0.0.1,localhost",
    no_proxy="127.0.0.1,localhost",
)

# An emulator takes any text for an ARN or a token; AWS does not.
check_every_call()

# The same commit gives the same verdict: no deadline on a noisy machine, no examples drawn by chance.
hypothesis.settings.register_profile("s3queue", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("s3queue")


@pytest.fixture(scope="session", autouse=True)
def _log_lines_as_pytest_has_them(request: pytest.FixtureRequest) -> None:
    """PySpark's loggers give each handler that they get a JSON formatter of theirs, pytest's for every test as well."""
    logs = request.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (logs.caplog_handler, logs.report_handler):
        handler.setFormatter = lambda formatter: None


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """moto's S3, one per test process."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def seaweedfs_endpoint() -> Iterator[str]:
    """SeaweedFS, one per test process; the first test that asks waits about four seconds."""
    with seaweedfs_server() as endpoint:
        yield endpoint
