"""Rehearsal: the real engine, planner, links and programs on ranks that wait instead of computing.

A model's twin has the same modules, layers and instances and tensors of a few numbers; its stages and messages last as
long as the cost model says of the model itself. docs/rehearsal.md says what that shows and what it does not.
"""
