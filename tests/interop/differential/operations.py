"""Operations by name."""

from tests.interop.differential.configurations import Config, Resolve
from tests.interop.differential.events import Intercept, Select
from tests.interop.differential.files import Deserialize, JsonHandler, Serialize, Unwire, Wire
from tests.interop.differential.search import Operation
from tests.interop.differential.spooling import DeserializeAvro, Spool
from tests.interop.differential.syslog import Multiport, Syslog
from tests.interop.differential.times import Path, Time
from tests.interop.differential.values import ContextValue

_ALL = (
    Config,
    Resolve,
    ContextValue,
    Syslog,
    Multiport,
    Time,
    Path,
    Intercept,
    Select,
    Serialize,
    Deserialize,
    DeserializeAvro,
    Spool,
    JsonHandler,
    Wire,
    Unwire,
)
OPERATIONS: dict[str, Operation] = {operation.name: operation() for operation in _ALL}  # type: ignore[abstract]  # none is
