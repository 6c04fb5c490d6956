"""Traces and figures of a run, for people and their tools."""
