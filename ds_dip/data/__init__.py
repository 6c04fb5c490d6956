"""Datasets that tell a sample's metadata without decoding it, and the sampler that owns the order."""
