"""DIPModule and DIPEngine on DeepSpeed's pipeline engine: links, execution, initialize, shutdown."""

from ds_dip.planner import ChannelError, PlanSourceError
from ds_dip.runtime.engine import DIPEngine
from ds_dip.runtime.executor import StageError
from ds_dip.runtime.finite import NonFiniteError
from ds_dip.runtime.initialize import initialize, load_config
from ds_dip.runtime.measure import AssignmentError, Measured
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.partitioning import partition_for
from ds_dip.runtime.shutdown import shutdown
from ds_dip.runtime.stopping import StopSignal
from ds_dip.runtime.transport import TransportError

#: What a run may end with by no fault of the code: each says in one sentence what, where and what to do.
ERRORS = (AssignmentError, StageError, TransportError, NonFiniteError, PlanSourceError, ChannelError, ValueError)

__all__ = [
    "ERRORS",
    "AssignmentError",
    "DIPEngine",
    "DIPModule",
    "Measured",
    "NonFiniteError",
    "StageError",
    "StopSignal",
    "TransportError",
    "initialize",
    "load_config",
    "partition_for",
    "shutdown",
]
