"""Why a schedule takes as long as it does, what another problem would bring, and how schedules compare.

The explanation is a pure function of a problem, a schedule and its times, planned or measured.
"""

from ds_dip.explaining.attribution import explain
from ds_dip.explaining.document import explanation_document
from ds_dip.explaining.explanation import CAUSES, Bubble, Explanation, Link
from ds_dip.explaining.view import Times

__all__ = ["CAUSES", "Bubble", "Explanation", "Link", "Times", "explain", "explanation_document"]
