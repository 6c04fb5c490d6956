"""Samples to microbatches: the online microbatch scheduler of DFLOP, on plain arrays.

It knows nothing of models or torch: an item has seconds on each resource and bytes, a bucket a capacity.
"""

from ds_dip.balancing.balance import Balance, balance, warm
from ds_dip.balancing.bounds import lower_bound
from ds_dip.balancing.heuristics import METHODS
from ds_dip.balancing.problem import BalancingError, Loads

__all__ = ["METHODS", "Balance", "BalancingError", "Loads", "balance", "lower_bound", "warm"]
