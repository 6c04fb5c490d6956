"""The papers' evaluations again, in simulation: our figures beside theirs, with what may explain each difference.

Models, data, costs and memory come from the rooms above; what the papers say is data in ``published``.
"""
