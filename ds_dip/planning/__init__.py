"""A batch's metadata -> microbatches -> sub-microbatches -> Problem."""
