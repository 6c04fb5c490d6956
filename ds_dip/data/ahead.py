"""Samples loaded ahead of their use, by threads: decoders let go of Python's lock for most of their time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from ds_dip.data.metadata import Dataset

Arrays = Mapping[str, list[np.ndarray]]
#: Seconds after which a sample that a thread loads is given up on.
DEADLINE_S = 300.0


def announce(dataset: Dataset, samples: Sequence[str], fields: Sequence[str]) -> None:
    """Tell a dataset what will be loaded soon, in this order; one without a method ``ahead`` does nothing with it."""
    ahead = getattr(dataset, "ahead", None)
    if ahead is not None:
        ahead(samples, fields)


class Ahead:
    """Loads samples by ``load(sample, fields)`` in ``workers`` threads before they are asked for.

    At most ``most`` samples are held, loaded or under way. Each is held until it is no longer announced, since its
    fields and instances are asked for one by one. Whatever was not announced is loaded when it is asked for.
    """

    def __init__(self, load: Callable[[str, Sequence[str]], Arrays], workers: int, most: int) -> None:
        self._load, self._workers, self._most = load, workers, most
        self._pool: ThreadPoolExecutor | None = None
        self._held: OrderedDict[str, tuple[frozenset[str], Future[Arrays]]] = OrderedDict()
        self._lock = threading.Lock()

    def announce(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        """Load these samples from now on, in this order; let go of all others."""
        if not self._workers or not fields:
            return
        wanted, own = list(dict.fromkeys(samples))[: self._most], frozenset(fields)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="ds-dip-load")
            for sample in [held for held in self._held if held not in set(wanted)]:
                self._held.pop(sample)[1].cancel()
            for sample in wanted:
                if sample not in self._held or not own <= self._held[sample][0]:
                    self._held[sample] = (own, self._pool.submit(self._load, sample, tuple(fields)))

    def load(self, sample: str, fields: Sequence[str]) -> Arrays:
        """The fields of a sample, waiting for a thread that has it in work.

        Raises what loading it raises, and TimeoutError after ``DEADLINE_S``.
        """
        with self._lock:
            own, future = self._held.get(sample, (frozenset(), None))
        if future is None or not own.issuperset(fields) or future.cancelled():
            return self._load(sample, fields)
        wait([future], DEADLINE_S)
        if not future.done():
            raise TimeoutError(f"sample {sample!r} was not loaded within {DEADLINE_S:.0f} s; is its storage there?")
        loaded = future.result()
        return {name: loaded[name] for name in fields}

    def forget(self, sample: str) -> None:
        """Load a sample anew when it is asked for."""
        with self._lock:
            if (held := self._held.pop(sample, None)) is not None:
                held[1].cancel()

    def close(self) -> None:
        """Let go of everything; what is under way ends by itself."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._held.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
