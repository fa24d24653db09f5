"""Door to YARN: of the agent, this module alone imports `flafka.agent.yarn`, and only in its functions.

They are called for `spark.master = yarn`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from flafka.agent.options import AgentOptions
    from flafka.agent.yarn.hadoop import HadoopConfiguration


class OnYarn(Protocol):
    """Application on YARN of one Spark session, from before its submission until after its end."""

    def settings(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's properties of the application; `own` are the user's."""

    def prepare(
        self, jvm: Any, conf: Mapping[str, str], archives: Iterable[tuple[Path, str]], jars: Iterable[Path]
    ) -> dict[str, str]:
        """End applications that earlier drivers left, and upload files; return the properties that name them.

        `archives` are files and the names under which executors find them unpacked. Raises `Retry`.
        """

    def submitting(self) -> AbstractContextManager[None]:
        """Report what the application waits for while Spark submits it."""

    def lacking(self, needed: str) -> str | None:
        """Return why a running application has no executor; None while one is being started."""

    def why_over(self) -> str | None:
        """Return what has ended the application; None if it runs, or if YARN does not answer in time."""

    def end(self) -> None:
        """End the application, if there is one."""


def agent_on_yarn(
    agent: str, configuration: str, say: Callable[[str], None], show: Callable[[Mapping[str, str]], None]
) -> OnYarn:
    """Return the application of an agent with that configuration file, which later runs of the agent recognize.

    `say` gets what keeps the application waiting, `show` its id and the address of its page.
    """
    from flafka.agent.yarn import application

    return application.YarnApplication(application.tag_of(agent, configuration), say, show)


def session_on_yarn(say: Callable[[str], None]) -> OnYarn:
    """Return the application of a session that belongs to no agent; `say` as for an agent's."""
    from flafka.agent.yarn import application

    return application.YarnApplication(f"flafka-{uuid.uuid4().hex}", say)


def hadoop_configuration() -> HadoopConfiguration:
    """Read Hadoop's configuration of this process. Raises `FlafkaError`, which says what is missing."""
    from flafka.agent.yarn import hadoop

    return hadoop.hadoop_configuration()


def wrong_with_files(conf: Mapping[str, str]) -> Iterator[str]:
    """Find what is wrong with the places of the files that executors need, without a connection."""
    from flafka.agent.yarn import kept

    return kept.wrong_with_files(conf)


def wrong_with_yarn(options: AgentOptions) -> Iterator[str]:
    """Ask the ResourceManager what would keep the agent's application from running."""
    from flafka.agent.yarn import resourcemanager

    return resourcemanager.wrong_with_yarn(options)


def described() -> str:
    """Ask for version and size: `YARN 3.4.3 with 2 NodeManagers and 8,192 MB`; empty without an answer."""
    from flafka.agent.yarn import resourcemanager

    return resourcemanager.told_of_yarn()
