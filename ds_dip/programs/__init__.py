"""Schedule -> a Program of instructions per rank, checked by a rendezvous replay before use."""

from ds_dip.programs.codec import ProgramTable, decode, encode
from ds_dip.programs.compile import ProgramError, compile_programs
from ds_dip.programs.replay import replay

__all__ = ["ProgramError", "ProgramTable", "compile_programs", "decode", "encode", "replay"]
