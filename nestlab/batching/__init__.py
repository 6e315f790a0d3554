"""Which sample goes where: clustering of a batch's samples into micro-batches that share keys."""

from nestlab.batching.cluster import cluster
from nestlab.batching.rules import RULES, ClusteringRule, Greedy, InTimeOrder, KMeans, rule
from nestlab.batching.samples import SampleKeys, cost, reduction, sample_keys

__all__ = [
    "RULES",
    "ClusteringRule",
    "Greedy",
    "InTimeOrder",
    "KMeans",
    "SampleKeys",
    "cluster",
    "cost",
    "reduction",
    "rule",
    "sample_keys",
]
