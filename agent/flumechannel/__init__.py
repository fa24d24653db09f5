"""The file channel of Apache Flume: what it holds on a disk, and the import of that into a channel of an agent."""
