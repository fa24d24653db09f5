"""`agent spark`: Spark's files on a cluster."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.agent.cli.output import Verbs, json_option, show
from flafka.plugins import FlafkaError


@click.group(cls=Verbs)
def spark() -> None:
    """Upload Spark's jars to the HDFS of a cluster."""


@spark.command()
@configuration_options
@json_option
def upload(chosen: ChosenConfiguration, as_json: bool) -> None:
    """Upload Spark's jars to the cluster's HDFS once, for agents on YARN.

    HADOOP_CONF_DIR or YARN_CONF_DIR names the cluster. The jars are stored in `.flafka/spark` below the user's home
    directory on HDFS, or below spark.yarn.stagingDir. Without this command Spark uploads them at each start.
    """
    from flafka.agent.options import YARN
    from flafka.agent.runner.spark.gateway import kill_gateway, start_gateway
    from flafka.agent.runner.spark.session import hadoop_jvm
    from flafka.agent.yarn.hadoop import hadoop_configuration
    from flafka.agent.yarn.uploads import UploadedFiles, record_jars_upload, upload_jars

    spec = load_or_exit(chosen)
    if spec.options.spark_master != YARN:
        raise FlafkaError(f"{spec.name}.spark.master is {spec.options.spark_master}: only yarn needs an upload")
    hadoop = hadoop_configuration()
    with tempfile.TemporaryDirectory(prefix="flafka-upload-") as directory, contextlib.ExitStack() as stack:
        stack.callback(kill_gateway)
        start_gateway(YARN, spec.options.spark_conf, Path(directory, "spark.log"))
        uri, size = upload_jars(UploadedFiles(hadoop_jvm(), spec.options.spark_conf))
    record_jars_upload(hadoop, spec.options.spark_conf, uri)
    rows = [(uri, "uploaded" if size else "exists", size)]
    show(("file", "state", "bytes"), rows, as_json=as_json)
