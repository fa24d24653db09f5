"""Files on the cluster's file system that are uploaded once, and used by later starts."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flafka.agent.jvm.jars import cache_directory
from flafka.agent.jvm.spark import spark_home
from flafka.agent.yarn.hadoop import YarnConfiguration, hadoop_configuration
from flafka.plugins import ConnectivityWarning, FlafkaError, Retry, require

log = logging.getLogger("spark")

UPLOAD_DIRECTORY = ".flafka/spark"
"""Directory of uploads, relative to the user's home or to `spark.yarn.stagingDir`."""
DRAFT_EXPIRY_SECONDS = 24 * 3600
"""Age of an incomplete upload after which it is deleted: its process was killed."""


class UploadedFiles:
    """Files on the default file system of Hadoop's configuration, with names derived from their content."""

    def __init__(self, jvm: Any, conf: Mapping[str, str]) -> None:
        """Connect with Spark's properties `conf`, and delete expired drafts. Raises Retry without an answer."""
        self._jvm = jvm
        configuration = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in conf.items():
            if name.startswith("spark.hadoop."):
                configuration.set(name.removeprefix("spark.hadoop."), value)
        with _java_errors("cannot reach the cluster's file system"):
            if staging := conf.get("spark.yarn.stagingDir"):
                base = jvm.org.apache.hadoop.fs.Path(staging)
                self._files = base.getFileSystem(configuration)
                base = self._files.makeQualified(base)
            else:
                self._files = jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
                base = self._files.getHomeDirectory()
            self._directory = jvm.org.apache.hadoop.fs.Path(base, UPLOAD_DIRECTORY)
        with suppress(Retry), _java_errors("cannot delete incomplete uploads"):  # perhaps of another user
            self._delete_expired_drafts()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._directory, name)

    def _delete_expired_drafts(self) -> None:
        """Delete incomplete uploads that are older than `DRAFT_EXPIRY_SECONDS`."""
        if not self._files.exists(self._directory):
            return
        for status in self._files.listStatus(self._directory):
            age = time.time() - status.getModificationTime() / 1000
            if status.getPath().getName().startswith(".") and age > DRAFT_EXPIRY_SECONDS:
                self._files.delete(status.getPath(), False)

    def find(self, name: str, size: int | None = None) -> str | None:
        """Return the URI of the uploaded file of this name, and of this size in bytes unless that is None.

        None if there is no such file. Raises Retry.
        """
        with _java_errors("cannot read the cluster's file system"):
            path = self._path(name)
            if not self._files.exists(path):
                return None
            is_complete = size is None or self._files.getFileStatus(path).getLen() == size
            return str(path.toString()) if is_complete else None

    def upload(self, file: Path) -> str:
        """Upload a file unless one of its name and size exists there, and return its URI. Raises Retry.

        Atomic, also with several writers. An incomplete upload of a killed process is deleted after
        `DRAFT_EXPIRY_SECONDS`.
        """
        size = file.stat().st_size
        if uri := self.find(file.name, size):
            return uri
        path, draft = self._path(file.name), self._path(f".{file.name}.{uuid.uuid4().hex}")
        log.info("uploading %s (%.1f MB), once, to %s", file.name, size / 1e6, path.toString())
        with _java_errors(f"cannot upload {file.name} to {self._directory.toString()}"):
            self._files.mkdirs(self._directory)
            try:
                self._copy(file, draft)
                if not self._files.rename(draft, path) and not self.find(file.name, size):
                    self._files.delete(path, False)  # of another size: incomplete, by another program
                    self._files.rename(draft, path)
            finally:
                self._files.delete(draft, False)
        if uri := self.find(file.name, size):
            return uri
        raise Retry(f"{path.toString()} is missing after its upload")

    def _copy(self, file: Path, draft: Any) -> None:
        source = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(file.as_uri()))
        self._files.copyFromLocalFile(False, True, source, draft)


@contextmanager
def _java_errors(message: str) -> Iterator[None]:
    """Convert an exception of Java in the block into Retry with this message."""
    try:
        yield
    except Exception as e:
        if not hasattr(e, "java_exception"):  # attribute of py4j's errors
            raise
        raise Retry(f"{message}: {e.java_exception.toString().splitlines()[0]}") from None


def _jars() -> list[Path]:
    return sorted((spark_home() / "jars").glob("*.jar"))


def jars_archive_name() -> str:
    """Return the name of the archive of this Spark's jars, derived from their names and sizes."""
    digest = hashlib.sha256("".join(f"{jar.name} {jar.stat().st_size}\n" for jar in _jars()).encode()).hexdigest()
    return f"spark-{require('pyspark', 'spark').__version__}-{digest[:12]}.zip"


def jars_bytes() -> int:
    """Return the size of this Spark's jars in bytes."""
    return sum(jar.stat().st_size for jar in _jars())


def upload_jars(files: UploadedFiles) -> tuple[str, int]:
    """Upload the archive of this Spark's jars, and return its URI and the uploaded bytes; 0 bytes if it exists.

    Raises Retry.
    """
    if uri := files.find(jars_archive_name()):
        return uri, 0
    directory = cache_directory() / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        archive = Path(temporary, jars_archive_name())
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for jar in _jars():
                file.write(jar, jar.name)
        return files.upload(archive), archive.stat().st_size


def record_jars_upload(hadoop: YarnConfiguration, conf: Mapping[str, str], uri: str) -> None:
    """Write a record on this host that this Spark's jars are uploaded at `uri`, for `agent check`."""
    file = _upload_record(hadoop, conf)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{uri}\n")


def are_jars_uploaded(hadoop: YarnConfiguration, conf: Mapping[str, str]) -> bool:
    """Return True if this host has a record of the upload of this Spark's jars to this cluster. Does not connect."""
    return _upload_record(hadoop, conf).exists()


def default_file_system(hadoop: YarnConfiguration, conf: Mapping[str, str]) -> str:
    """Return the default file system, such as `hdfs://namenode:8020`; Spark's property wins over Hadoop's.

    Without both, return `file:///`, the local one.
    """
    return conf.get("spark.hadoop.fs.defaultFS") or hadoop.get("fs.defaultFS") or "file:///"


def file_problems(conf: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about the locations of files for executors on YARN, without a connection.

    Empty without a configuration of Hadoop, which is reported elsewhere.
    """
    try:
        hadoop = hadoop_configuration()
    except FlafkaError:
        return  # reported as an error of the configuration
    locations = conf.get("spark.yarn.stagingDir", ""), default_file_system(hadoop, conf)
    if next(filter(None, (urlsplit(location).scheme for location in locations)), "file") == "file":
        yield ConnectivityWarning(
            "fs.defaultFS, in core-site.xml beside yarn-site.xml, is not a file system of the cluster: files "
            "for executors are uploaded to the disk of this host, which other hosts cannot read"
        )
    elif not {"spark.yarn.jars", "spark.yarn.archive"} & conf.keys() and not are_jars_uploaded(hadoop, conf):
        yield ConnectivityWarning(
            f"Spark uploads its own jars, {jars_bytes() / 1e6:.0f} MB, to HDFS at each start: `agent spark upload` "
            "uploads them once, or set spark.conf.spark.yarn.jars or spark.conf.spark.yarn.archive to their location"
        )


def _upload_record(hadoop: YarnConfiguration, conf: Mapping[str, str]) -> Path:
    staging = conf.get("spark.yarn.stagingDir", "")
    location = "\0".join((default_file_system(hadoop, conf), *filter(None, [staging]), jars_archive_name()))
    return cache_directory() / "spark" / f"uploaded-{hashlib.sha256(location.encode()).hexdigest()[:16]}"
