"""Schedule -> a Program of instructions per rank, checked by a rendezvous replay before use."""
