"""What the servers of the Hadoop family share."""

from collections.abc import Mapping
from xml.sax.saxutils import escape


def site_xml(properties: Mapping[str, str]) -> str:
    """Hadoop's configuration format."""
    lines = (
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"
