"""The sink `webhook`: groups of events as chat messages or alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pydantic
import requests

from flafka import Batch, Component, Config, Event, EventId, Rejected, Retry, Sink, hookimpl, option

Group = tuple[str, ...]
"""Values of the headers by which events are grouped."""


class WebhookConfig(Config):
    """Options of the sink `webhook`."""

    url: pydantic.SecretStr = option(
        name="url",
        description="URL to post to: the secret webhook URL of a chat, or `http://host:9093/api/v2/alerts` of an "
        "Alertmanager.",
    )
    format: Literal["slack", "alertmanager"] = option(
        "slack",
        name="format",
        description="`slack`: a message for Slack, Mattermost or Rocket.Chat. `alertmanager`: an alert.",
    )
    group_by: list[str] = option(
        [], name="groupBy", description="Headers: events with the same values share a message or an alert."
    )
    alert: str = option(
        "Events", name="alert", description="Title of the message, or label `alertname` of the alert."
    )
    interval: float = option(
        10, name="interval", unit="s", gt=0, description="Time for which events are collected before they are posted."
    )
    shown: int = option(
        3, name="shown", unit="events", ge=0, description="Number of bodies of a group that are shown."
    )
    timeout: float = option(10, name="timeout", unit="s", gt=0, description="Timeout of an answer.")


class WebhookSink(Sink[WebhookConfig]):
    """Posts one message for each group of events; at least once: after a failure a group may be posted again.

    Events that the server refuses finally (a status 4XX except 408 and 429) become dead letters.
    """

    type_name = "webhook"

    def __init__(self, config: WebhookConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.flush_interval = config.interval  # the runner flushes by it
        self._message = _MESSAGES[config.format]

    def open(self) -> None:
        """Start with an empty buffer; `flush` connects."""
        self._session = requests.Session()
        self._waiting: list[tuple[EventId, Event]] = []

    def close(self) -> None:
        """Close the connections."""
        if hasattr(self, "_session"):
            self._session.close()

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if no server answers. Posts nothing."""
        try:
            requests.head(self.config.url.get_secret_value(), timeout=self.config.timeout)
        except requests.RequestException as e:
            yield _connection_error(e)

    def write(self, batch: Batch) -> None:
        """Buffer the events until the flush."""
        self._waiting += zip(batch.ids(), batch, strict=True)

    def flush(self) -> None:
        """Post all groups. Raises Rejected for events that the server refuses finally."""
        groups: dict[Group, list[tuple[EventId, Event]]] = {}
        for id, event in self._waiting:
            group = tuple(event.headers.get(name, "") for name in self.config.group_by)
            groups.setdefault(group, []).append((id, event))
        rejected: dict[EventId, str] = {}
        for group, members in groups.items():
            if refusal := self._post(self._message(self.config, group, [event for _, event in members])):
                rejected |= {id: refusal for id, _ in members}
        self._waiting = []
        if rejected:
            raise Rejected(rejected)

    def reset(self) -> None:
        """Drop unposted events, which are redelivered."""
        self._waiting = []

    def _post(self, message: Any) -> str:
        """Post a message. Return the reason of a final refusal; empty on success. Raises Retry for other failures."""
        try:
            url, timeout = self.config.url.get_secret_value(), self.config.timeout
            answer = self._session.post(url, json=message, timeout=timeout, allow_redirects=False)
        except requests.RequestException as e:
            raise Retry(_connection_error(e)) from e
        if answer.ok and not answer.is_redirect:
            return ""
        error = f"the server answers {answer.status_code} {answer.reason}: {answer.text[:200]}"
        if answer.status_code // 100 == 4 and answer.status_code not in (408, 429):
            return error
        after = answer.headers.get("Retry-After", "")
        raise Retry(error, after=float(after) if after.isdigit() else None)


def _connection_error(error: requests.RequestException) -> str:
    """Return the text of an error, without the URL, which is a secret."""
    return f"the server cannot be reached: {type(error).__name__}"


def _bodies(events: Sequence[Event], shown: int) -> str:
    return "\n".join(event.body.decode(errors="replace") for event in events[:shown])


def slack(config: WebhookConfig, group: Group, events: Sequence[Event]) -> Any:
    """Return a message: title, number of events, group, and the first bodies."""
    headers = " ".join(f"{name}={value}" for name, value in zip(config.group_by, group, strict=True))
    title = f"*{config.alert}* ({len(events)}) {headers}".rstrip()
    bodies = _bodies(events, config.shown)
    return {"text": f"{title}\n```{bodies}```" if bodies else title}


def alertmanager(config: WebhookConfig, group: Group, events: Sequence[Event]) -> Any:
    """Return an alert. Alertmanager identifies alerts by their labels, so that a repeated post is idempotent."""
    labels = {name: value for name, value in zip(config.group_by, group, strict=True) if value}
    annotations = {"count": str(len(events)), "description": _bodies(events, config.shown)}
    return [{"labels": {"alertname": config.alert, **labels}, "annotations": annotations}]


_MESSAGES: dict[str, Callable[[WebhookConfig, Group, Sequence[Event]], Any]] = {
    "slack": slack,
    "alertmanager": alertmanager,
}


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [WebhookSink]
