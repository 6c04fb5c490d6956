"""Which layers form a chunk, and which rank a chunk lives on."""
