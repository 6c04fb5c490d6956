"""Measures operators, links and the engine on this machine into a latency table, and what a dataset asks of a model.

Checks what the table predicts against what layers, stages and iterations take.
"""
