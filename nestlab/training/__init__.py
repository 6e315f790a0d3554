"""The fit loop, metrics, checkpoints, and the trained model as files."""

from nestlab.training.checkpoint import Checkpoints, Trained, restore, save
from nestlab.training.export import check_target, export_model
from nestlab.training.fit import FitConfig, Saving, fit
from nestlab.training.history import History
from nestlab.training.loading import load_model
from nestlab.training.looks import ClickJudge, Judge, Look, RetrievalJudge, TaskJudge
from nestlab.training.metrics import binary_metrics, gauc, task_metrics
from nestlab.training.options import SaveOptions, TrainOptions
from nestlab.training.ranking_metrics import popularity_ranks, ranks_of_targets, retrieval_metrics
from nestlab.training.recipe import Recipe, assemble, connect
from nestlab.training.retrieval import Ranking, RankingProtocol, evaluate_retrieval, rank_by_popularity
from nestlab.training.state import State

__all__ = [
    "Checkpoints",
    "ClickJudge",
    "FitConfig",
    "History",
    "Judge",
    "Look",
    "Ranking",
    "RankingProtocol",
    "Recipe",
    "RetrievalJudge",
    "SaveOptions",
    "Saving",
    "State",
    "TaskJudge",
    "TrainOptions",
    "Trained",
    "assemble",
    "binary_metrics",
    "check_target",
    "connect",
    "evaluate_retrieval",
    "export_model",
    "fit",
    "gauc",
    "load_model",
    "popularity_ranks",
    "rank_by_popularity",
    "ranks_of_targets",
    "restore",
    "retrieval_metrics",
    "save",
    "task_metrics",
]
