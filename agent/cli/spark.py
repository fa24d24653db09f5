"""`agent spark`: what an agent's Spark keeps on a cluster."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_or_exit
from flafka.agent.cli.output import Verbs, json_option, show
from flafka.plugins import FlafkaError


@click.group(cls=Verbs)
def spark() -> None:
    """Put on a cluster what Spark needs there."""


@spark.command()
@configuration_options
@json_option
def upload(chosen: Chosen, as_json: bool) -> None:
    """Put Spark's own jars on the cluster's HDFS, once, where agents on YARN then find them.

    HADOOP_CONF_DIR or YARN_CONF_DIR names the cluster. The jars go below the user's directory there, or below
    spark.yarn.stagingDir of the configuration, in `.flafka/spark`. Without it Spark uploads them at each start.
    """
    from flafka.agent.options import YARN
    from flafka.agent.runner.spark.gateway import kill_gateway, start_gateway
    from flafka.agent.runner.spark.session import hadoop_jvm
    from flafka.agent.yarn.hadoop import hadoop_configuration
    from flafka.agent.yarn.kept import KeptFiles, remember_jars, upload_jars

    spec = load_or_exit(chosen)
    if spec.options.spark_master != YARN:
        raise FlafkaError(
            f"{spec.name}.spark.master is {spec.options.spark_master}, and nothing is uploaded but for yarn"
        )
    hadoop = hadoop_configuration()
    with tempfile.TemporaryDirectory(prefix="flafka-upload-") as directory, contextlib.ExitStack() as stack:
        stack.callback(kill_gateway)
        start_gateway(YARN, spec.options.spark_conf, Path(directory, "spark.log"))
        uri, size = upload_jars(KeptFiles(hadoop_jvm(), spec.options.spark_conf))
    remember_jars(hadoop, spec.options.spark_conf, uri)
    rows = [(uri, "uploaded" if size else "is there", size)]
    show(("file", "state", "bytes"), rows, as_json=as_json)
