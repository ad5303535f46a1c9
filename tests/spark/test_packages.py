"""The packages that a run brings along, under the very names that the synthesized template gives them."""

from __future__ import annotations

import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from s3queue.deployment import Deployment
from s3queue.spark_runs.emr_serverless import start_job_run
from support.spark_stack import synthesized


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    template = synthesized(tmp_path_factory.mktemp("code"))
    return Deployment.from_env(template.function("s3queue-exports")["Environment"]["Variables"])


def settings(deployment: Deployment) -> dict[str, str]:
    """What the deployed launcher tells spark-submit."""
    asked = start_job_run(deployment, token="t", name="n", arguments=[], minutes=1, max_executors=1, tags={})
    words = asked["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"].split()
    return dict(word.split("=", 1) for option, word in pairwise(words) if option == "--conf")


def test_spark_unpacks_what_the_template_names(spark, deployment, tmp_path):
    address, _, folder = settings(deployment)["spark.archives"].partition("#")
    (tmp_path / "brought_along.py").write_text("WHERE = 'in the archive'\n")
    # As CDK names the asset, which keeps only the last of a file's extensions.
    archive = tmp_path / Path(address).name
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "brought_along.py", "brought_along.py")

    spark.sparkContext.addArchive(f"{archive}#{folder}")

    def look(_: int) -> list[str]:
        from pathlib import Path

        from pyspark import SparkFiles

        return [path.name for path in Path(SparkFiles.get(folder)).iterdir()]

    assert spark.sparkContext.parallelize([1], 1).map(look).collect() == [["brought_along.py"]]


def test_driver_and_executors_find_the_packages_their_python_and_their_region(deployment):
    told = settings(deployment)
    for place in ("spark.emr-serverless.driverEnv", "spark.executorEnv"):
        assert told[f"{place}.PYTHONPATH"] == "./packages"
        # The wheels are for cp311, and EMR's image has several Pythons.
        assert told[f"{place}.PYSPARK_PYTHON"].endswith("python3.11")
        assert told[f"{place}.AWS_REGION"] == deployment.spark_region != ""


def test_python_has_more_than_a_tenth_of_the_memory(deployment):
    told = settings(deployment)
    for place in ("spark.driver", "spark.executor"):
        heap, overhead = (int(told[f"{place}.{name}"].removesuffix("m")) for name in ("memory", "memoryOverhead"))
        assert overhead >= heap
        # EMR Serverless gives a worker of 2 vCPU 4 to 16 GB.
        assert told[f"{place}.cores"] == "2"
        assert 4 * 1024 <= heap + overhead <= 16 * 1024
