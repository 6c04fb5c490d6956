"""An explanation as a JSON document, ``ds-dip/explanation`` 1."""

from __future__ import annotations

from typing import Any

from ds_dip.explaining.explanation import Explanation
from ds_dip.explaining.words import sentences
from ds_dip.scheduling.problem import Problem

FORMAT, VERSION = "ds-dip/explanation", 1


def explanation_document(problem: Problem, found: Explanation, bound: float | None = None) -> dict[str, Any]:
    """All of an explanation; what a drawing needs is in ``critical_path`` (task ids), ``bubbles`` and ``text``."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "measured": found.measured,
        "ready_work": found.ready_work,
        "makespan": found.makespan,
        "lower_bound": bound,
        "bubble": found.bubble,
        "work": list(found.work),
        "critical_path": [link.task for link in found.critical_path],
        "links": [
            {
                "task": link.task,
                "rank": link.rank,
                "start": link.start,
                "end": link.end,
                "reason": link.reason,
                "transfer": link.transfer,
                "late": link.late,
            }
            for link in found.critical_path
        ],
        "ending": found.ending,
        "bubbles": [
            {"rank": own.rank, "start": own.start, "end": own.end, "cause": own.cause, "task": own.task}
            for own in found.bubbles
        ],
        "seconds": [dict(own) for own in found.sums()],
        "text": sentences(problem, found, bound),
    }
