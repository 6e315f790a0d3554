"""The training step as a schedule: built from flags, validated, executed, traced."""

from nestlab.pipeline.builders import build
from nestlab.pipeline.dense import Clipped
from nestlab.pipeline.executors import Inline, Shuffled
from nestlab.pipeline.in_flight import MissingInput
from nestlab.pipeline.lanes import Lanes
from nestlab.pipeline.pipeline import Pipeline
from nestlab.pipeline.schedule import Action, Edge, Entry, Key, Lane, Schedule, Stage
from nestlab.pipeline.shape import Shape
from nestlab.pipeline.step import StepOutput
from nestlab.pipeline.validator import InvalidSchedule, validate

__all__ = [
    "Action",
    "Clipped",
    "Edge",
    "Entry",
    "Inline",
    "InvalidSchedule",
    "Key",
    "Lane",
    "Lanes",
    "MissingInput",
    "Pipeline",
    "Schedule",
    "Shape",
    "Shuffled",
    "Stage",
    "StepOutput",
    "build",
    "validate",
]
