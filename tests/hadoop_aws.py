"""Spark's client of S3, which is not part of PySpark: hadoop-aws and the SDK that it needs, from a Python package.

The package is of Spark 3.3, and brings hadoop-aws 3.3.1. It is installed at the first use, without what it needs, in
``.venv-peers/hadoop-aws`` (200 MB). It cannot read the defaults of a newer Hadoop, so `settings` has numbers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.object_store import KEY_ID, SECRET, FailingServer

PACKAGE = "sagemaker-pyspark==1.4.5"

PLACE = Path(__file__).resolve().parent.parent / ".venv-peers" / "hadoop-aws"

JARS = ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")


def jars() -> list[Path]:
    """The files for the class path of Spark. The test is skipped if they cannot be installed."""
    found = [PLACE / "sagemaker_pyspark" / "jars" / name for name in JARS]
    if not all(path.exists() for path in found):
        shutil.rmtree(PLACE, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PLACE), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not all(path.exists() for path in found):
            pytest.skip(f"{PACKAGE} cannot be installed: {done.stderr.strip()[-300:]}")
    return found


def settings(store: FailingServer) -> dict[str, str]:
    """The configuration of a Spark that reads the bucket of a store."""
    client = {
        "endpoint": f"http://127.0.0.1:{store.port}",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": KEY_ID,
        "secret.key": SECRET,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        # The defaults of Hadoop 3.4 and newer are texts such as "60s".
        "threads.keepalivetime": "60",
        "connection.timeout": "200000",
        "connection.establish.timeout": "30000",
        "multipart.purge.age": "86400",
    }
    return {
        "spark.driver.extraClassPath": ":".join(map(str, jars())),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in client.items()},
    }
