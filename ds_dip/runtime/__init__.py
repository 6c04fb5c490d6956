"""DIPModule and DIPEngine on DeepSpeed's pipeline engine: links, execution, initialize, shutdown."""

from ds_dip.runtime.engine import DIPEngine
from ds_dip.runtime.executor import StageError
from ds_dip.runtime.initialize import initialize, load_config, partition_for
from ds_dip.runtime.measure import Measured
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.shutdown import shutdown
from ds_dip.runtime.transport import TransportError

__all__ = [
    "DIPEngine",
    "DIPModule",
    "Measured",
    "StageError",
    "TransportError",
    "initialize",
    "load_config",
    "partition_for",
    "shutdown",
]
