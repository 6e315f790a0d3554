"""Ranking models over samples with a candidate and, mostly, the user's events before it."""

from nestlab.models.ranking.building import RANKING, TASKS, ranking_batches, ranking_model, ranking_tables
from nestlab.models.ranking.dcn import DCNv2
from nestlab.models.ranking.din import DIN
from nestlab.models.ranking.interest import AttentionInterest, EncodedInterest
from nestlab.models.ranking.multitask import MultiTask

__all__ = [
    "DIN",
    "RANKING",
    "TASKS",
    "AttentionInterest",
    "DCNv2",
    "EncodedInterest",
    "MultiTask",
    "ranking_batches",
    "ranking_model",
    "ranking_tables",
]
