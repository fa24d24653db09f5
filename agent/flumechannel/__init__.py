"""Reader of the files of Flume's file channel, and import of its events into a channel of an agent."""
