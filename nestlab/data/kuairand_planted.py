"""The signal planted in KuaiRand's twins: who clicks what, and where on the screen."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.data.kuairand_synth_tables import VideoFacts
from nestlab.data.planted import expected_auc, shift_for, sigmoid, uniform_weight

BAYES_AUC = 0.76
# Rows by tab, how often they are clicked, and how often a row that is not clicked was not played at all.
TAB_SHARES = {1: 0.748, 0: 0.126, 4: 0.066, 2: 0.034, 6: 0.016, 3: 0.004, 8: 0.003, 5: 0.002, 12: 0.001}
TAB_CLICK = {1: 0.494, 0: 0.086, 4: 0.596, 2: 0.481, 6: 0.149, 3: 0.02, 8: 0.04, 5: 0.25, 12: 0.13}
TAB_ZERO = {1: 0.012, 0: 1.0, 4: 0.073, 2: 0.012, 6: 0.0004, 3: 1.0, 8: 1.0, 5: 0.004, 12: 0.97}
TAB_OTHER = 0.3
RANDOM_CLICK = 0.1762  # of the random log
TABS = 15
# How the variance of what is added to a tab's logit is shared out.
SHARES = {
    **{"user": 0.15, "degree": 0.10, "onehot": 0.15, "video": 0.20, "author": 0.05, "tag": 0.10},
    **{"pair": 0.15, "taste": 0.10},
}
FACTORS = 2
_EVERY = 40  # of the sample's rows: what they err by all tabs do, and the shift takes it back


class ClickModel:
    """p(click) = sigmoid(logit(tab) + scale · z + shift); z sums weights of user, video and their features.

    The weights are hashes of (seed, column, value), so that a held-out row of any user and video follows the same law.
    """

    def __init__(self, seed: int, users: pd.DataFrame, videos: VideoFacts) -> None:
        self._seed = seed
        onehot = users["onehot_feat1"].to_numpy()
        degree = pd.factorize(users["user_active_degree"], sort=True)[0]
        user = self._sum({"user": users["user_id"].to_numpy(), "degree": degree, "onehot": onehot})
        video = self._sum({"video": np.arange(len(videos.author)), "author": videos.author, "tag": videos.tag})
        # A column of weights, then the factors of the pairs.
        self._user = np.stack([user, *self._factors(onehot)], axis=1).astype(np.float32)
        self._video = np.stack([video, *self._factors(videos.tag + 1_000)], axis=1).astype(np.float32)
        self._tab_logits = np.full(TABS, np.log(TAB_OTHER / (1 - TAB_OTHER)))
        self._scale, self._shift = 1.0, 0.0

    def calibrate(
        self, user_n: np.ndarray, video_n: np.ndarray, tab_n: np.ndarray, liked_n: np.ndarray, click_rate: float
    ) -> None:
        """Sets scale, tabs' logits and shift on a sample: p has the mean `click_rate` and the AUC BAYES_AUC, and each
        tab its share of the clicks.
        """
        z, ones = self._z(user_n, video_n, liked_n), np.ones(len(user_n))
        low, high = 0.0, 20.0
        for _ in range(25):
            self._scale = (low + high) / 2
            self._tab_logits[list(TAB_CLICK)] = _logits_for(self._scale * z[::_EVERY], list(TAB_CLICK.values()))
            tab = self._tab_logits[tab_n]
            self._shift = shift_for(tab + self._scale * z, click_rate)
            reached = expected_auc(sigmoid(tab + self._scale * z + self._shift), ones)
            low, high = (self._scale, high) if reached < BAYES_AUC else (low, self._scale)

    def handicap(self, user_n: np.ndarray, video_n: np.ndarray, tab_n: np.ndarray, liked_n: np.ndarray) -> float:
        """What to take off the logits of rows of the random log, so that the mean of p is RANDOM_CLICK."""
        return -shift_for(self.tab_logits[tab_n] + self._scale * self._z(user_n, video_n, liked_n), RANDOM_CLICK)

    def probability(
        self, user_n: np.ndarray, video_n: np.ndarray, tab_n: np.ndarray, liked_n: np.ndarray, handicap: float = 0.0
    ) -> np.ndarray:
        """[n] float64; `handicap` is taken off the logit: videos shown at random please less.

        liked_n [n] bool: the video is of a cluster that the user prefers.
        """
        return sigmoid(self.tab_logits[tab_n] + self._scale * self._z(user_n, video_n, liked_n) - handicap)

    @property
    def tab_logits(self) -> np.ndarray:
        """[TABS] float64, the shift included."""
        return self._tab_logits + self._shift

    @property
    def terms(self) -> tuple[np.ndarray, np.ndarray, float]:
        """([users, 3], [videos, 3] float32: a weight and two factors; what a preferred cluster adds), all scaled."""
        root = np.sqrt(self._scale)
        scaled = (np.array([self._scale, root, root], np.float32) * terms for terms in (self._user, self._video))
        return *scaled, self._scale * self._liking

    def facts(self) -> dict[str, object]:
        """What is planted, for truth.json."""
        return {"variance_shares": dict(SHARES), "factors": FACTORS, "scale": self._scale, "shift": self._shift}

    @property
    def _liking(self) -> float:
        return 2.0 * float(np.sqrt(SHARES["taste"]))  # about half the rows are of a preferred cluster

    def _z(self, user_n: np.ndarray, video_n: np.ndarray, liked_n: np.ndarray) -> np.ndarray:
        user, video = self._user[user_n], self._video[video_n]
        return user[:, 0] + video[:, 0] + (user[:, 1:] * video[:, 1:]).sum(axis=1) + self._liking * liked_n

    def _sum(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        return sum(np.sqrt(SHARES[name]) * self._weight(name, values) for name, values in columns.items())

    def _factors(self, values: np.ndarray) -> list[np.ndarray]:
        root = (SHARES["pair"] / FACTORS) ** 0.25
        return [root * self._weight(f"pair{k}", values) for k in range(FACTORS)]

    def _weight(self, column: str, values: np.ndarray) -> np.ndarray:
        stream = self._seed * 64 + [*SHARES, *(f"pair{k}" for k in range(FACTORS))].index(column) + 5_000
        return uniform_weight(stream, values.astype(np.int64))


def _logits_for(z: np.ndarray, rates: list[float]) -> np.ndarray:
    """[tabs] what to add to z [n], so that the mean probability is each tab's rate: `shift_for`, of all at once."""
    low, high = np.full((len(rates), 1), -60.0), np.full((len(rates), 1), 60.0)
    for _ in range(20):
        middle = (low + high) / 2
        less = sigmoid(z + middle).mean(axis=1, keepdims=True) < np.array(rates)[:, None]
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return (low + high)[:, 0] / 2
