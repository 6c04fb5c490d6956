"""Datasets that tell a sample's metadata without decoding it, and the sampler that owns the order."""

from __future__ import annotations

from ds_dip.data.collate import collate, content_hash
from ds_dip.data.metadata import Dataset, SampleMetadata, read_batch, write_batch
from ds_dip.data.ordering import Order, order_of
from ds_dip.data.reference import DatasetReference
from ds_dip.data.sampler import Sampler

__all__ = [
    "Dataset",
    "DatasetReference",
    "Order",
    "SampleMetadata",
    "Sampler",
    "collate",
    "content_hash",
    "order_of",
    "read_batch",
    "write_batch",
]
