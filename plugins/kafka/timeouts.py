"""Times, in seconds, that several of the product's Kafka clients wait. A time that one of them waits is beside it."""

REQUEST_SECONDS = 10.0
"""Time in which brokers answer one request: for offsets, watermarks, metadata, or the settings of a topic.

Brokers that take longer count as away: the caller reports that, and tries again later.
"""
METADATA_SECONDS = 2.0
"""Time in which brokers answer a list of topics or groups that a polling thread asks for, which fetches nothing
meanwhile.
"""
CONNECT_SECONDS = 2.0
"""Time in which a broker accepts a connection, and gives each answer on it, when a client's failure is explained."""
TOPIC_ID_SECONDS = 5.0
"""Longest time between two requests for the id of a topic: one that was recreated may have records before the
offset.
"""
BUSY_POLL_SECONDS = 0.02
"""Timeout of a poll of a consumer that has just received records: commits and rebalances wait for its end."""
