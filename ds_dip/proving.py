"""CP-SAT that ends when the process is told to: by itself it hears no signal until its time is over."""

from __future__ import annotations

import threading
from typing import Any

#: Seconds between two looks at whether a signal came.
_PATIENCE = 0.1


def solved(solver: Any, model: Any) -> Any:
    """The status of a CP-SAT model that ``solver`` has solved in a thread of its own.

    What a signal raises here (KeyboardInterrupt, SystemExit) ends the search at once and is raised on.
    """
    # Else it would take Ctrl-C as the end of this one search, and the caller would go on with the next.
    solver.parameters.catch_sigint_signal = False
    statuses: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            statuses.append(solver.solve(model))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the thread that waits raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="cp-sat", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_PATIENCE)
    except BaseException:
        while thread.is_alive():  # a search that has not begun yet hears nothing
            solver.stop_search()
            thread.join(_PATIENCE)
        raise
    if failures:
        raise failures[0]
    return statuses[0]
