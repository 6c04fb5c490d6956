"""Where every layer lives: chunks of equal work on ranks (DIP, offline partitioner), written to and read from files."""

from ds_dip.models.partition import PartitionError, check_partition, model_hash, partition_hash
from ds_dip.partition.bounds import bottleneck_bounds, even_bounds, levelled_bounds
from ds_dip.partition.chunks import make_partition
from ds_dip.partition.file import read_partition, write_partition

__all__ = [
    "PartitionError",
    "bottleneck_bounds",
    "check_partition",
    "even_bounds",
    "levelled_bounds",
    "make_partition",
    "model_hash",
    "partition_hash",
    "read_partition",
    "write_partition",
]
