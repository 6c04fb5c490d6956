"""Durations and bytes of a layer, a chunk, a stage."""
