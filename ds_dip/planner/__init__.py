"""The planner: plans ahead in a process of its own and hands programs to its leader."""
