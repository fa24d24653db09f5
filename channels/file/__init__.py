"""Channel `file`: stores events on a disk of this host until they are delivered."""

from flafka.channels.file.channel import FileChannel
from flafka.channels.file.config import FileChannelConfig

__all__ = ["FileChannel", "FileChannelConfig"]
