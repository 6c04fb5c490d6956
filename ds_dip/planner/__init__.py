"""The daemon: plans ahead in its own process and hands programs to its leader, on whom training never waits long.

``python -m ds_dip.planner`` is the process; ``PlanSource`` is what an engine sees of it. No torch on its path.
"""

from ds_dip.planner.channel import Channel, ChannelError, MemoryChannel, StoreChannel, within
from ds_dip.planner.client import PlannerClient
from ds_dip.planner.follower import FollowerSource
from ds_dip.planner.leader import LeaderSource
from ds_dip.planner.ordering import SCHEDULES
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import PlanError, StageTime, StepPlan
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.source import PlanSource, PlanSourceError, SourceStatistics

__all__ = [
    "SCHEDULES",
    "Channel",
    "ChannelError",
    "FollowerSource",
    "LeaderSource",
    "MemoryChannel",
    "PlanError",
    "PlanSource",
    "PlanSourceError",
    "Planner",
    "PlannerClient",
    "PlannerSettings",
    "SourceStatistics",
    "StageTime",
    "StepPlan",
    "StoreChannel",
    "within",
]
