"""What an LMM is: modules, layers, edges, and the torch layers of our own models."""
