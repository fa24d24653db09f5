"""Imports of libraries ahead of time, before the sources of an agent open.

An import fails when the process has no file descriptors or memory left. The first failure, the first request and a
sink that opens again must therefore not import. Some libraries stay unusable after an import that failed midway.
"""

from __future__ import annotations

import encodings.idna
import importlib.util
from dataclasses import replace

import numpy.ma
import uvicorn.lifespan.off
import uvicorn.loops.asyncio
import uvicorn.protocols.http.h11_impl

from flafka.agent.topology import AgentSpec
from flafka.plugins import FlafkaError
from flafka.plugins.component import require
from flafka.plugins.errors import ANY_FAILURE

LAZY_IMPORTS = (
    encodings.idna,
    numpy.ma,
    uvicorn.lifespan.off,
    uvicorn.loops.asyncio,
    uvicorn.protocols.http.h11_impl,
)
"""Modules that libraries import at their first use: Python for host names, PyArrow, and the HTTP server."""


def import_libraries(spec: AgentSpec) -> None:
    """Import the libraries of all components of a configuration, except sinks that run on Spark.

    Libraries that are not installed are skipped: the component reports that when it opens. Raises FlafkaError if an
    import fails for another reason.
    """
    local = replace(spec, sinks=tuple(sink for sink in spec.sinks if sink.runner == "local"))
    for component in local.components():
        for module, extra in component.cls.libraries_for(component.config).items():
            try:
                if _is_installed(module):
                    require(module, extra)
            except ANY_FAILURE as e:
                raise FlafkaError(f"{component.path}: {module} cannot be imported: {type(e).__name__}: {e}") from e


def _is_installed(module: str) -> bool:
    """Return True if Python finds this module, which may have dots, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False
