"""Stories of the source `taildir`: a scripted world writes, rotates and removes files beneath the real code.

The files are real ones in memory; the kernel's inotify, the process that opens files and the channel's brokers are
modelled. Between any two calls of the system the agent may be paused or killed.
"""

from tests.simulator.files.plans import FilePlan, plan_of
from tests.simulator.files.run import FileRun

__all__ = ["FilePlan", "FileRun", "plan_of"]
