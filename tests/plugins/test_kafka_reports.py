"""Delivery reports of a Kafka client, for which waiting threads poll."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flafka.agent.services.running import until
from flafka.plugins.kafka.producer import DeliveryReports, ReportPoller


class Reporting:
    """Client whose `poll` calls the callbacks of records that are `report`ed meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._callbacks: list[Callable[..., object]] = []
        self.is_polled = False

    def report(self, delivery: DeliveryReports) -> None:
        with self._changed:
            self._callbacks.append(delivery.callback([0]))
            self._changed.notify()

    def poll(self, timeout: float) -> int:
        with self._changed:
            self.is_polled = True
            self._changed.wait_for(lambda: self._callbacks, timeout)
            self.is_polled = False
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None, None)
        return len(callbacks)


def put(client: Any) -> DeliveryReports:
    delivery = DeliveryReports(client, 1)
    delivery.expect(1)
    return delivery


@pytest.mark.parametrize("number", [1, 2])
def test_a_client_is_polled_although_another_one_reports_nothing(number: int) -> None:
    poller, clients = ReportPoller(), [Reporting() for _ in range(2)]
    silent, *deliveries = put(clients[0]), *(put(clients[1]) for _ in range(number))
    threads = [threading.Thread(target=poller.wait, args=(delivery, 60)) for delivery in (silent, *deliveries)]
    for thread in threads:
        thread.start()
    until(lambda: all(client.is_polled for client in clients), "two threads that poll")
    for delivery in deliveries:
        clients[1].report(delivery)
    for thread in threads[1:]:
        thread.join(20)
        assert not thread.is_alive()
    assert threads[0].is_alive()
    clients[0].report(silent)
    threads[0].join(60)


def test_the_next_thread_polls_once_the_first_has_its_reports() -> None:
    poller, client = ReportPoller(), Reporting()
    first, second = put(client), put(client)
    threads = [threading.Thread(target=poller.wait, args=(delivery, 60)) for delivery in (first, second)]
    threads[0].start()
    until(lambda: client.is_polled, "the first thread that polls")
    threads[1].start()
    until(lambda: poller._sleeping, "the second thread, which sleeps")
    client.report(first)
    threads[0].join(60)
    until(lambda: client.is_polled, "the second thread that polls")
    client.report(second)
    threads[1].join(60)
    assert first.is_complete
    assert second.is_complete
