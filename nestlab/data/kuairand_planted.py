"""The signal planted in kuairand-synth: who clicks what, and where on the screen."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nestlab.data.planted import expected_auc, shift_for, sigmoid, uniform_weight

CLICK_RATE, BAYES_AUC = 0.44, 0.76
# Rows by tab, and how often they are clicked (the tabs not listed: together 1 %, TAB_OTHER).
TAB_SHARES = {1: 0.748, 0: 0.126, 4: 0.066, 2: 0.034, 6: 0.016, 3: 0.004, 8: 0.003, 5: 0.002, 12: 0.001}
TAB_CLICK = {1: 0.494, 0: 0.086, 4: 0.596, 2: 0.481, 6: 0.149, 3: 0.02, 8: 0.04}
TAB_OTHER = 0.3
# How the variance of what is added to a tab's logit is shared out.
SHARES = {"user": 0.15, "degree": 0.10, "onehot": 0.20, "video": 0.20, "author": 0.05, "tag": 0.15, "pair": 0.15}
_FACTORS = 2


class ClickModel:
    """p(click) = sigmoid(logit(tab) + scale · z + shift); z sums weights of user, video and their features.

    The weights are hashes of (seed, column, value), so that a held-out row of any user and video follows the same law.
    """

    def __init__(self, seed: int, users: pd.DataFrame, videos: pd.DataFrame) -> None:
        self._seed = seed
        self._of_user = {
            "user": self._weight("user", users["user_id"].to_numpy()),
            "degree": self._weight("degree", pd.factorize(users["user_active_degree"], sort=True)[0]),
            "onehot": self._weight("onehot", users["onehot_feat1"].to_numpy()),
        }
        tags = pd.to_numeric(videos["tag"].str.partition(",")[0]).fillna(-1).to_numpy().astype(np.int64)
        self._of_video = {
            "video": self._weight("video", videos["video_id"].to_numpy()),
            "author": self._weight("author", videos["author_id"].to_numpy()),
            "tag": self._weight("tag", tags),
        }
        onehot = users["onehot_feat1"].to_numpy()
        self._user_factors = [self._weight(f"pair{k}", onehot) for k in range(_FACTORS)]
        self._video_factors = [self._weight(f"pair{k}", tags + 1_000) for k in range(_FACTORS)]
        self._tab_logits = np.full(15, _logit(TAB_OTHER))
        for tab, rate in TAB_CLICK.items():
            self._tab_logits[tab] = _logit(rate)
        self._scale, self._shift = 1.0, 0.0

    def calibrate(self, user_n: np.ndarray, video_n: np.ndarray, tab_n: np.ndarray) -> None:
        """Sets scale and shift on a sample, so that the mean of p is CLICK_RATE and its AUC is BAYES_AUC."""
        z, tab, ones = self._z(user_n, video_n), self._tab_logits[tab_n], np.ones(len(user_n))
        low, high = 0.0, 20.0
        for _ in range(25):
            self._scale = (low + high) / 2
            self._shift = shift_for(tab + self._scale * z, CLICK_RATE)
            reached = expected_auc(sigmoid(tab + self._scale * z + self._shift), ones)
            low, high = (self._scale, high) if reached < BAYES_AUC else (low, self._scale)

    def probability(
        self, user_n: np.ndarray, video_n: np.ndarray, tab_n: np.ndarray, handicap: float = 0.0
    ) -> np.ndarray:
        """[n] float64; `handicap` is taken off the logit: videos shown at random please less."""
        z = self._tab_logits[tab_n] + self._scale * self._z(user_n, video_n) + self._shift - handicap
        return sigmoid(z)

    def facts(self) -> dict[str, object]:
        """What is planted, for truth.json."""
        return {"variance_shares": dict(SHARES), "factors": _FACTORS, "scale": self._scale, "shift": self._shift}

    def _z(self, user_n: np.ndarray, video_n: np.ndarray) -> np.ndarray:
        z = sum(np.sqrt(SHARES[name]) * weight[user_n] for name, weight in self._of_user.items())
        z = z + sum(np.sqrt(SHARES[name]) * weight[video_n] for name, weight in self._of_video.items())
        factors = zip(self._user_factors, self._video_factors, strict=True)
        return z + np.sqrt(SHARES["pair"] / _FACTORS) * sum(u[user_n] * v[video_n] for u, v in factors)

    def _weight(self, column: str, values: np.ndarray) -> np.ndarray:
        stream = self._seed * 64 + [*SHARES, *(f"pair{k}" for k in range(_FACTORS))].index(column) + 5_000
        return uniform_weight(stream, values.astype(np.int64))


def _logit(p: float) -> float:
    return float(np.log(p / (1 - p)))
