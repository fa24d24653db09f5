"""Lazy interface to `flafka.agent.yarn`, which is imported only for `spark.master = yarn`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from flafka.agent.options import AgentOptions
    from flafka.agent.yarn.hadoop import YarnConfiguration


class OnYarn(Protocol):
    """Application on YARN of one Spark session, from before its submission until after its end."""

    def settings(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's properties for the application: the user's properties `own`, and the tag of the agent."""

    def prepare(
        self, jvm: Any, conf: Mapping[str, str], archives: Iterable[tuple[Path, str]], jars: Iterable[Path]
    ) -> dict[str, str]:
        """End applications of earlier drivers, upload files, and return the properties that name the files.

        `archives` are files, with the names of their unpacked directories on executors. Raises Retry.
        """

    def submitting(self) -> AbstractContextManager[None]:
        """Return a context that reports the reasons for which the application waits while Spark submits it."""

    def executor_shortage(self, needed: str) -> str | None:
        """Return the reason why a running application has no executor; None while one starts or runs.

        `needed` describes the container that is needed.
        """

    def end_reason(self) -> str | None:
        """Return the reason for the end of the application; None if it runs or YARN does not answer in 10 s."""

    def end(self) -> None:
        """End the application, if there is one. Best-effort, for at most 10 s."""


def agent_on_yarn(
    agent: str, configuration: str, warn: Callable[[str], None], publish: Callable[[Mapping[str, str]], None]
) -> OnYarn:
    """Return the application of an agent with this configuration file, not submitted yet.

    Later runs of the agent recognize it. `warn` is called with the reason for which the application waits, `publish`
    with its ID and web page.
    """
    from flafka.agent.yarn import application

    return application.YarnApplication(application.application_tag(agent, configuration), warn, publish)


def session_on_yarn(warn: Callable[[str], None]) -> OnYarn:
    """Return the application of a session without an agent, not submitted yet.

    `warn` is called with the reason for which the application waits.
    """
    from flafka.agent.yarn import application

    return application.YarnApplication(f"flafka-{uuid.uuid4().hex}", warn)


def hadoop_configuration() -> YarnConfiguration:
    """Return the Hadoop configuration of this process. Raises FlafkaError if it is missing or incomplete."""
    from flafka.agent.yarn import hadoop

    return hadoop.hadoop_configuration()


def file_problems(conf: Mapping[str, str]) -> Iterator[str]:
    """Yield problems with the paths of files that executors need, without a connection.

    `conf` are Spark's properties.
    """
    from flafka.agent.yarn import uploads

    return uploads.file_problems(conf)


def yarn_problems(options: AgentOptions) -> Iterator[str]:
    """Yield problems that would keep the agent's application from running, by asking the ResourceManager."""
    from flafka.agent.yarn import resourcemanager

    return resourcemanager.yarn_problems(options)


def describe_yarn() -> str:
    """Return YARN's version and size: `YARN 3.4.3 with 2 NodeManagers and 8,192 MB`; empty without an answer."""
    from flafka.agent.yarn import resourcemanager

    return resourcemanager.describe_yarn()
