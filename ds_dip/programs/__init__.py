"""Schedule -> a Program of instructions per rank, checked by a rendezvous replay before use."""

from ds_dip.programs.codec import ProgramTable, decode, encode
from ds_dip.programs.compile import ProgramError, compile_programs
from ds_dip.programs.memory import Held, memory, peaks, strategies_of
from ds_dip.programs.replay import replay

__all__ = [
    "Held",
    "ProgramError",
    "ProgramTable",
    "compile_programs",
    "decode",
    "encode",
    "memory",
    "peaks",
    "replay",
    "strategies_of",
]
