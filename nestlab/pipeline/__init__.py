"""The training step as a schedule: built from flags, validated, executed, traced."""

from nestlab.pipeline.builders import build
from nestlab.pipeline.executors import Inline, Shuffled
from nestlab.pipeline.pipeline import Pipeline
from nestlab.pipeline.schedule import Action, Edge, Entry, Key, Lane, Schedule, Stage
from nestlab.pipeline.step import MissingInput, StepOutput
from nestlab.pipeline.validator import InvalidSchedule, validate

__all__ = [
    "Action",
    "Edge",
    "Entry",
    "Inline",
    "InvalidSchedule",
    "Key",
    "Lane",
    "MissingInput",
    "Pipeline",
    "Schedule",
    "Shuffled",
    "Stage",
    "StepOutput",
    "build",
    "validate",
]
