"""What stays on the cluster's file system from one start to the next, so that it is uploaded once."""

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
from flafka.agent.yarn.hadoop import HadoopConfiguration, hadoop_configuration
from flafka.plugins import ConnectivityWarning, FlafkaError, Retry, require

log = logging.getLogger("spark")

PLACE = ".flafka/spark"
"""Below the user's own directory there, or below `spark.yarn.stagingDir`."""
DRAFT_SECONDS = 24 * 3600
"""No upload takes so long: what was begun earlier was left by a process that has died of it."""


class KeptFiles:
    """Files on the default file system of Hadoop's configuration, named by what is in them."""

    def __init__(self, jvm: Any, conf: Mapping[str, str]) -> None:
        """`conf` are Spark's properties. Raises `Retry` where the file system does not answer."""
        self._jvm = jvm
        own = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in conf.items():
            if name.startswith("spark.hadoop."):
                own.set(name.removeprefix("spark.hadoop."), value)
        with _told("cannot reach the cluster's file system"):
            if staging := conf.get("spark.yarn.stagingDir"):
                base = jvm.org.apache.hadoop.fs.Path(staging)
                self._files = base.getFileSystem(own)
                base = self._files.makeQualified(base)
            else:
                self._files = jvm.org.apache.hadoop.fs.FileSystem.get(own)
                base = self._files.getHomeDirectory()
            self._directory = jvm.org.apache.hadoop.fs.Path(base, PLACE)
        with suppress(Retry), _told("another user's drafts are for that user to delete"):
            self._forget_drafts()

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._directory, name)

    def _forget_drafts(self) -> None:
        if not self._files.exists(self._directory):
            return
        for one in self._files.listStatus(self._directory):
            age = time.time() - one.getModificationTime() / 1000
            if one.getPath().getName().startswith(".") and age > DRAFT_SECONDS:
                self._files.delete(one.getPath(), False)

    def find(self, name: str, size: int | None = None) -> str | None:
        """The URI of the file of that name, and of that size; None where it is not there. Raises `Retry`."""
        with _told("cannot look into the cluster's file system"):
            path = self._at(name)
            if not self._files.exists(path):
                return None
            there = size is None or self._files.getFileStatus(path).getLen() == size
            return str(path.toString()) if there else None

    def put(self, file: Path) -> str:
        """The URI of that file's copy there, which is made where it is missing. Raises `Retry`.

        It is there whole or not at all, however many write it at once. What a killed process leaves of an upload
        is deleted by whoever looks there a day later.
        """
        size = file.stat().st_size
        if there := self.find(file.name, size):
            return there
        path, draft = self._at(file.name), self._at(f".{file.name}.{uuid.uuid4().hex}")
        log.info("uploading %s (%.1f MB), once, to %s", file.name, size / 1e6, path.toString())
        with _told(f"cannot upload {file.name} to {self._directory.toString()}"):
            self._files.mkdirs(self._directory)
            try:
                self._copy(file, draft)
                if not self._files.rename(draft, path) and not self.find(file.name, size):
                    self._files.delete(path, False)  # of another size: half of one, from elsewhere
                    self._files.rename(draft, path)
            finally:
                self._files.delete(draft, False)
        if there := self.find(file.name, size):
            return there
        raise Retry(f"{path.toString()} was uploaded and is not there")

    def _copy(self, file: Path, draft: Any) -> None:
        here = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(file.as_uri()))
        self._files.copyFromLocalFile(False, True, here, draft)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        if not hasattr(e, "java_exception"):  # what py4j makes of an exception of Java's
            raise
        raise Retry(f"{what}: {e.java_exception.toString().splitlines()[0]}") from None


def _jars() -> list[Path]:
    return sorted((spark_home() / "jars").glob("*.jar"))


def jars_archive() -> str:
    """The name of the archive of this Spark's jars."""
    of_all = hashlib.sha256("".join(f"{jar.name} {jar.stat().st_size}\n" for jar in _jars()).encode()).hexdigest()
    return f"spark-{require('pyspark', 'spark').__version__}-{of_all[:12]}.zip"


def jars_bytes() -> int:
    """Of this Spark's jars."""
    return sum(jar.stat().st_size for jar in _jars())


def upload_jars(files: KeptFiles) -> tuple[str, int]:
    """The URI of the archive of this Spark's jars, which is made and uploaded where it is missing, and its bytes."""
    if there := files.find(jars_archive()):
        return there, 0
    directory = cache_directory() / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as made:
        archive = Path(made, jars_archive())
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for jar in _jars():
                file.write(jar, jar.name)
        return files.put(archive), archive.stat().st_size


def remember_jars(hadoop: HadoopConfiguration, conf: Mapping[str, str], uri: str) -> None:
    """For `agent check`, which asks nobody: this Spark's jars are where it looks for them with these properties."""
    file = _mark(hadoop, conf)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{uri}\n")


def jars_remembered(hadoop: HadoopConfiguration, conf: Mapping[str, str]) -> bool:
    """Whether they were put there, as far as this host knows."""
    return _mark(hadoop, conf).exists()


def default_file_system(hadoop: HadoopConfiguration, conf: Mapping[str, str]) -> str:
    """The one of the cluster, such as `hdfs://namenode:8020`; that of Hadoop itself where none is named."""
    return conf.get("spark.hadoop.fs.defaultFS") or hadoop.get("fs.defaultFS") or "file:///"


def wrong_with_files(conf: Mapping[str, str]) -> Iterator[str]:
    """Find what is wrong with the places of the files that executors on YARN need, without a connection."""
    try:
        hadoop = hadoop_configuration()
    except FlafkaError:
        return  # an error of the configuration says so
    places = conf.get("spark.yarn.stagingDir", ""), default_file_system(hadoop, conf)
    if next(filter(None, (urlsplit(place).scheme for place in places)), "file") == "file":
        yield ConnectivityWarning(
            "fs.defaultFS, in core-site.xml beside yarn-site.xml, names no file system of the cluster: what "
            "executors need is put on this host's own disk, which other hosts do not have"
        )
    elif not {"spark.yarn.jars", "spark.yarn.archive"} & conf.keys() and not jars_remembered(hadoop, conf):
        yield ConnectivityWarning(
            f"Spark uploads its own jars, {jars_bytes() / 1e6:.0f} MB, to HDFS at each start: `agent spark upload` "
            "puts them there once, or spark.conf.spark.yarn.jars or spark.conf.spark.yarn.archive names them there"
        )


def _mark(hadoop: HadoopConfiguration, conf: Mapping[str, str]) -> Path:
    staging = conf.get("spark.yarn.stagingDir", "")
    place = "\0".join((default_file_system(hadoop, conf), *filter(None, [staging]), jars_archive()))
    return cache_directory() / "spark" / f"uploaded-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
