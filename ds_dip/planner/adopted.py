"""Measured costs that replicas assign samples by: one replica's, adopted by all from the same step on.

DFLOP's adaptive correction changes which samples run together. Every planner assigns for itself, so all must do it by
the same costs: those of replica 0's plans, which travel in the exchange that ends a step anyway, by a rule that every
rank applies to the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ds_dip.costs.corrections import Fit
from ds_dip.models.spec import Model
from ds_dip.planner.codec import Codec
from ds_dip.planner.record import StepPlan

#: Costs are adopted after so many steps, after three times, and then every four times as many.
FIRST = 16
#: Relative change of one factor against another from which on assignments are worth changing.
MOVED = 1.05
#: What stands for a line that was not fitted; factors and offsets are never negative.
_NONE = -1.0


@dataclass(frozen=True, slots=True)
class Version:
    """The lines that samples are assigned by from the step ``since`` on."""

    since: int
    fits: tuple[Fit, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """Versions in the order of their steps; before the first one, samples are assigned by static costs."""

    versions: tuple[Version, ...] = ()

    def at(self, step: int) -> tuple[Fit, ...]:
        """The lines that a step's samples are assigned by; none for static costs."""
        return next((version.fits for version in reversed(self.versions) if version.since <= step), ())

    @property
    def newest(self) -> tuple[Fit, ...]:
        """The lines adopted last, whether or not their first step has come."""
        return self.versions[-1].fits if self.versions else ()


ADOPTED: Codec[Adopted] = Codec(Adopted, "adopted costs")


class Adoption:
    """What a rank knows of adopted costs, and the rule by which more are adopted; the same on all ranks.

    ``model`` is what is trained, ``ahead`` the steps that planners plan ahead. ``first`` is the first of the steps
    after which costs are compared. Not ``active``, samples stay assigned by static costs.
    """

    def __init__(self, model: Model, ahead: int, *, active: bool = True, first: int = FIRST) -> None:
        self._ahead, self._active, self._first = ahead, active, first
        self._kinds = {module.name: "FB" if model.backward(module.name) else "F" for module in model.modules}
        self.adopted = Adopted()

    def restore(self, adopted: Adopted) -> None:
        """Go on from what a saved run had adopted, or from static costs where nothing is ever adopted."""
        self.adopted = adopted if self._active else Adopted()

    def told(self, plan: StepPlan) -> list[float]:
        """What this rank tells after a step: its plan's lines, factor and offset each; nothing where none is due."""
        done = plan.step + 1
        since = done - 3 * self._first
        if not self._active or (done != self._first and (since < 0 or since % (4 * self._first))):
            return []
        known = {(fit.module, fit.kind): fit for fit in plan.corrections.fits}
        fits = [known.get((module, kind)) for module, kinds in self._kinds.items() for kind in kinds]
        return [number for fit in fits for number in ((_NONE, _NONE) if fit is None else (fit.factor, fit.offset))]

    def heard(self, step: int, told: Sequence[float]) -> bool:
        """Take in what replica 0 told after a step; whether it is adopted.

        It holds from step ``step + 2 + ahead`` on, of which no planner has made the batch yet. All of a pipeline's
        ranks are in the exchange of ``step``, so its leader has asked for no later one. A planner is at most ``ahead``
        beyond the step that it was asked for; one that started anew since then begins with the next step, and is at
        ``step + 1 + ahead``. The leader itself makes fallbacks, and publishes and loads ahead, up to ``step + 1``, and
        checks what its planner has made. Planners hear of it before they are asked for ``step + 1``.
        """
        fits = self._completed(told)
        if not fits or not _moved(self.adopted.newest, fits):
            return False
        versions = self.adopted.versions
        # Those that a later one had replaced by this step are of no step to come.
        kept = [own for own, after in pairwise(versions) if after.since > step]
        self.adopted = Adopted((*kept, *versions[-1:], Version(step + 2 + self._ahead, fits)))
        return True

    def _completed(self, told: Sequence[float]) -> tuple[Fit, ...]:
        """A line for every module and kind, or none at all: in one unit, so that their seconds can be compared.

        One that was not measured, or is constant and so tells nothing of samples, has its module's other factor, or the
        mean of all.
        """
        names = [(module, kind) for module, kinds in self._kinds.items() for kind in kinds]
        pairs = zip(names, told[::2], told[1::2], strict=False)
        known = {name: Fit(*name, factor, offset) for name, factor, offset in pairs if factor > 0}
        if not known:
            return ()

        def mean(module: str) -> float:
            own = [fit.factor for fit in known.values() if fit.module == module]
            return fmean(own or [fit.factor for fit in known.values()])

        return tuple(known.get(name) or Fit(*name, mean(name[0]), 0.0) for name in names)


def _moved(old: Sequence[Fit], new: Sequence[Fit]) -> bool:
    """Whether factors moved against each other; that all of them grow alike changes no assignment."""
    before = {(fit.module, fit.kind): fit.factor for fit in old}
    ratios = [fit.factor / before.get((fit.module, fit.kind), 1.0) for fit in new]
    return max(ratios) > MOVED * min(ratios)
