"""Why a run ends, told to every rank: the first one that fails says why, and one that is silent is named.

A backend's error says at most that some rank does not answer. Through torch's store the ranks therefore tell each
other more: what ended the first of them, and every second that they live.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from torch.distributed import distributed_c10d

from ds_dip.files import first_line
from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.planner import ChannelError, PlanSourceError, within
from ds_dip.runtime.executor import StageError
from ds_dip.runtime.finite import NonFiniteError
from ds_dip.runtime.transport import LostRankError, TransportError, lost_rank, timed_out

#: Seconds between two signs of life; with many ranks the store gets at most ``_SIGNS_A_SECOND``.
_PERIOD_S = 1.0
_SIGNS_A_SECOND = 256
#: A rank without a sign of life for so many periods is silent.
_PERIODS = 3
#: Periods after which every rank's thread has seen what ended the run.
_HEARD = 1.5
#: How long the store may take to answer.
_STORE_S = 5.0
#: Errors whose message is a sentence by itself.
_SENTENCES = (StageError, TransportError, NonFiniteError, PlanSourceError, ChannelError, ValueError)
#: Errors that all ranks raise together: a run may go on after them.
_AGREED = (PlanSourceError, NonFiniteError, CheckpointError)
_REMEDY = "look at that rank's log and machine, and start again from the last checkpoint"
_engines = count()


class Peers:
    """This rank's end of what the job's ranks tell each other beside their messages.

    ``store`` is torch's, of which it takes clients of its own. All ranks make theirs in the same order.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._prefix, self._rank, self._world = f"ds_dip/peers/{next(_engines)}", rank, world
        self._period = max(_PERIOD_S, world / _SIGNS_A_SECOND)
        self._asking, self._signing = store.clone(), store.clone()
        self._asking.set_timeout(timedelta(seconds=_STORE_S))
        self._closed = threading.Event()
        #: The cause as the thread saw it: the store ends with the rank that holds it.
        self._seen = ""
        self._signs = count()
        self._sign()
        self._thread = threading.Thread(target=self._live, name="ds_dip signs of life", daemon=True)
        self._thread.start()
        # A thread that the interpreter's end finds inside the store's code takes the process down with an abort.
        atexit.register(self.close)

    def close(self) -> None:
        """End the signs of life."""
        atexit.unregister(self.close)
        self._closed.set()
        self._thread.join(self._period)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Tell the others what ends this rank in ``what``, and turn the loss of a peer into why it is lost.

        Raises TransportError where another rank is lost; this rank's own errors stay as they are.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, _AGREED):
                raise
            if not is_loss(error):
                self.ended(f"rank {self._rank} ended in {what}: {sentence_of(error)}")
                raise
            raise TransportError(f"rank {self._rank}, {what}: {self.explain(error)}") from error

    def ended(self, sentence: str) -> None:
        """Tell why the run ends; the first rank's sentence counts. The rank that holds the store stays to be heard."""
        try:
            first = within(_STORE_S, lambda: self._asking.compare_set(self._key("cause"), "", sentence))
        except (RuntimeError, TimeoutError):
            return
        if first.decode(errors="replace") == sentence and self._rank == 0 and not _agent_holds():
            time.sleep(_HEARD * self._period)

    def explain(self, error: BaseException) -> str:
        """Why another rank was lost, as far as anybody knows, in a sentence; takes some seconds."""
        try:
            if known := self._cause() or self._silent():
                return known
        except (RuntimeError, TimeoutError):
            if self._seen:
                return self._seen
            holder = "torchrun's agent" if _agent_holds() else "rank 0"
            return f"{holder}, which holds the store of the job, is gone or stopped; {_REMEDY}"
        words = sentence_of(error)
        return words if isinstance(error, TransportError | ChannelError) else f"{words}; {_REMEDY}"

    def _cause(self) -> str:
        return self._seen or within(_STORE_S, lambda: self._read_cause(self._asking))

    def _read_cause(self, store: Any) -> str:
        key = self._key("cause")
        return str(store.get(key).decode(errors="replace")) if store.check([key]) else ""

    def _silent(self) -> str:
        """The sentence on ranks that have shown no sign of life while this one watched; empty where all have."""
        before = self._read_signs()
        time.sleep(_PERIODS * self._period)
        after = self._read_signs()
        # A rank that ended meanwhile has said why, which matters more than that it is silent now.
        if cause := self._cause():
            return cause
        silent = [rank for rank, signs in enumerate(zip(before, after, strict=True)) if signs[0] == signs[1]]
        if not silent:
            return ""
        self.ended(f"{_named(silent)} no sign of life any more (killed, stopped or cut off); {_REMEDY}")
        return self._cause()

    def _read_signs(self) -> list[bytes]:
        keys = [self._key(f"life/{rank}") for rank in range(self._world)]
        return within(_STORE_S, lambda: list(self._asking.multi_get(keys)))

    def _live(self) -> None:
        while not self._closed.wait(self._period):
            try:
                self._sign()
                self._seen = self._seen or self._read_cause(self._signing)
            except RuntimeError:  # the store is gone, and with it everybody who could read a sign
                return

    def _sign(self) -> None:
        self._signing.set(self._key(f"life/{self._rank}"), str(next(self._signs)))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _agent_holds() -> bool:
    """Whether torchrun's agent holds the store, rather than rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def is_loss(error: BaseException) -> bool:
    """Whether an error only says that another rank does not answer, so that the cause lies there."""
    if isinstance(error, TransportError):
        return isinstance(error, LostRankError)
    return isinstance(error, ChannelError) or (isinstance(error, RuntimeError) and lost_rank(error))


def sentence_of(error: BaseException) -> str:
    """An error in a line: a backend's is turned into words."""
    if isinstance(error, _SENTENCES):
        return first_line(error)
    if isinstance(error, RuntimeError) and lost_rank(error):
        return "another rank does not answer" if timed_out(error) else "another rank is gone"
    return f"{type(error).__name__}: {first_line(error)}"


def set_deadline(seconds: float) -> None:
    """Make every process group that this rank is in give up a collective after ``seconds``."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} gives"
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"ranks {shown} give"
