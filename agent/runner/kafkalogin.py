"""Kerberos login to Kafka of a process, which all components of a configuration share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from flafka.agent.topology import AgentSpec, ComponentSpec
from flafka.plugins import FlafkaError, Retry
from flafka.plugins.kafka.config import KafkaClientConfig
from flafka.plugins.kafka.kerberos import KafkaLogin, current_login, log_in_as


def log_in_to_kafka(components: Iterable[ComponentSpec]) -> None:
    """Make the Kerberos login of these components to Kafka that of the process. No effect without one.

    Call it before threads start. A failure is left to the components, which try again, and report it.
    """
    if (login := _kafka_login(components)) is not None:
        with contextlib.suppress(Retry):
            log_in_as(login)


def refuse_other_login(old: AgentSpec, new: AgentSpec) -> None:
    """Raise FlafkaError if the process of an agent cannot take the Kerberos login to Kafka of its new configuration.

    A process keeps its login, and a first keytab would change the environment while threads read it.
    """
    known, login = current_login() or _kafka_login(old.components()), _kafka_login(new.components())
    if login is None or login == known or (known is None and login.keytab is None):
        return
    raise FlafkaError(
        f"the Kerberos login to Kafka changes from {known or 'none'} to {login}, and a process keeps its own: "
        "nothing was changed; restart the agent"
    )


def _kafka_login(components: Iterable[ComponentSpec]) -> KafkaLogin | None:
    """Return the first login; all others are equal."""
    for component in components:
        if isinstance(component.config, KafkaClientConfig):
            for login in component.config.kerberos_logins().values():
                return login
    return None
