"""Engines side by side in one run: DIPEngine, DeepSpeed's own pipeline engine and others on the same data and weights.

``ds-dip bench`` starts the modules of this room as ranks; docs/benchmarks.md says what they measure and how to repeat.
"""
