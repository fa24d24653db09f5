"""The sink `webhook`: groups of events as messages to people, or as alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pydantic
import requests

from flafka import Batch, Component, Config, Event, EventId, Rejected, Retry, Sink, hookimpl, option

Group = tuple[str, ...]
"""The values of the headers that events are grouped by."""


class WebhookConfig(Config):
    """Options of the sink `webhook`."""

    url: pydantic.SecretStr = option(
        name="url",
        description="Where to post: of a chat the whole address, which is a secret; of an Alertmanager "
        "`http://host:9093/api/v2/alerts`.",
    )
    format: Literal["slack", "alertmanager"] = option(
        "slack",
        name="format",
        description="`slack`: a message, as Slack, Mattermost and Rocket.Chat take it. `alertmanager`: an alert.",
    )
    group_by: list[str] = option(
        [], name="groupBy", description="Headers: events that have the same values share one message, or one alert."
    )
    alert: str = option("Events", name="alert", description="What it is called: the title, or the label `alertname`.")
    interval: float = option(
        10, name="interval", unit="s", gt=0, description="Time for which events are gathered before they are posted."
    )
    shown: int = option(3, name="shown", unit="events", ge=0, description="How many bodies of a group are shown.")
    timeout: float = option(10, name="timeout", unit="s", gt=0, description="Maximum time that an answer may take.")


class WebhookSink(Sink[WebhookConfig]):
    """Posts one message for each group of events; at least once: after a failure a group may be posted again.

    What the server refuses for good (a status 4XX, but for 408 and 429) becomes dead letters.
    """

    type_name = "webhook"

    def __init__(self, config: WebhookConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.flush_interval = config.interval  # the runner flushes by it
        self._message = _MESSAGES[config.format]

    def open(self) -> None:
        """Begin with nothing; connections are made when there is something to post."""
        self._session = requests.Session()
        self._waiting: list[tuple[EventId, Event]] = []

    def close(self) -> None:
        """Close the connections."""
        if hasattr(self, "_session"):
            self._session.close()

    def check_connectivity(self) -> Iterator[str]:
        """Whether anything answers there; posts nothing."""
        try:
            requests.head(self.config.url.get_secret_value(), timeout=self.config.timeout)
        except requests.RequestException as e:
            yield _away(e)

    def write(self, batch: Batch) -> None:
        """Keep the events until the flush."""
        self._waiting += zip(batch.ids(), batch, strict=True)

    def flush(self) -> None:
        """Return when all groups are posted."""
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
        """Drop what was not posted: it will be offered again."""
        self._waiting = []

    def _post(self, message: Any) -> str:
        """Post it; why the server will never take it, or nothing. Retry where it may take it later."""
        try:
            url, timeout = self.config.url.get_secret_value(), self.config.timeout
            answer = self._session.post(url, json=message, timeout=timeout, allow_redirects=False)
        except requests.RequestException as e:
            raise Retry(_away(e)) from e
        if answer.ok and not answer.is_redirect:
            return ""
        told = f"the server answers {answer.status_code} {answer.reason}: {answer.text[:200]}"
        if answer.status_code // 100 == 4 and answer.status_code not in (408, 429):
            return told
        after = answer.headers.get("Retry-After", "")
        raise Retry(told, after=float(after) if after.isdigit() else None)


def _away(error: requests.RequestException) -> str:
    """Without the address, which is a secret."""
    return f"the server cannot be reached: {type(error).__name__}"


def _bodies(events: Sequence[Event], shown: int) -> str:
    return "\n".join(event.body.decode(errors="replace") for event in events[:shown])


def slack(config: WebhookConfig, group: Group, events: Sequence[Event]) -> Any:
    """A message: what it is called, how many, of which group, and the first bodies."""
    headers = " ".join(f"{name}={value}" for name, value in zip(config.group_by, group, strict=True))
    title = f"*{config.alert}* ({len(events)}) {headers}".rstrip()
    bodies = _bodies(events, config.shown)
    return {"text": f"{title}\n```{bodies}```" if bodies else title}


def alertmanager(config: WebhookConfig, group: Group, events: Sequence[Event]) -> Any:
    """An alert: the same group is the same alert to an Alertmanager, so that it does no harm to post it again."""
    labels = {name: value for name, value in zip(config.group_by, group, strict=True) if value}
    annotations = {"count": str(len(events)), "description": _bodies(events, config.shown)}
    return [{"labels": {"alertname": config.alert, **labels}, "annotations": annotations}]


_MESSAGES: dict[str, Callable[[WebhookConfig, Group, Sequence[Event]], Any]] = {
    "slack": slack,
    "alertmanager": alertmanager,
}


@hookimpl
def components() -> list[type[Component]]:
    """What this module brings."""
    return [WebhookSink]
