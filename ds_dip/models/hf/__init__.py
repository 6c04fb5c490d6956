"""Models of transformers and diffusers as modules, layers and edges: one adapter file a family.

The libraries' own layer classes run unchanged; only this package, and what opens its models, imports them.
"""
