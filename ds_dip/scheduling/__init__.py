"""Problem -> Schedule: kernels, interleaving, search, memory strategies, baselines and bounds.

This room imports nothing of ours and nothing of torch, so it serves other trainers too.
"""
