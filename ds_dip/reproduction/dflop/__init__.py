"""DFLOP's evaluation again, in simulation: its optimizer and its scheduler over baselines that a grid tunes.

Figures are ours alone: the paper's text gives ranges over all of its cases, which the report quotes beside them.
"""
