"""2D sparse parallelism: replicas that agree, the drift that averaging brings, and what they cost in memory."""

from __future__ import annotations

import pandas as pd

from nestlab.experiments.tables import Said, answer, chosen

_DIGEST = {
    "groups": "groups",
    "state_scale": "states divided by",
    "difference": "largest difference to flat",
    "mean_difference": "mean difference to flat",
    "weights_agree": "weights of replicas equal",
    "states_agree": "states of replicas equal",
    "more_bytes": "more a rank, MB",
    "formula_bytes": "by the formula, MB",
}


def digest(frame: pd.DataFrame) -> pd.DataFrame:
    return chosen(frame, _DIGEST)


def says(frame: pd.DataFrame) -> Said:
    if frame.empty:
        return Said("One rank has no other to be a replica of: nothing was tried.")
    plain, scaled = frame.iloc[0], frame.iloc[1]
    verdict = "smaller" if scaled["mean_difference"] < plain["mean_difference"] else "not smaller"
    return Said(
        f"{plain['groups']} groups of ranks, averaged after every step, row-wise Adagrad. The replicas' weights and "
        f"states {'are' if frame[['weights_agree', 'states_agree']].all(axis=None) else '**are not**'} equal to "
        f"the bit; "
        f"the mean difference to the flat layout is {plain['mean_difference']:.1e}, and "
        f"{scaled['mean_difference']:.1e} "
        f"with the states divided by the groups, which is {verdict}. A rank holds "
        f"{plain['more_bytes'] / 1e6:.2f} MB more "
        f"rows; the formula S·(M − 1)/T gives {plain['formula_bytes'] / 1e6:.2f} MB."
    )


def answers(frame: pd.DataFrame) -> list[dict]:
    if frame.empty:
        return []
    plain, scaled = frame.iloc[0], frame.iloc[1]
    groups = f"{plain['groups']} replica groups"
    return [
        answer("RL-P-001", bool(frame["weights_agree"].all()), "measured", f"{groups}: weights equal after a step"),
        answer("RL-P-002", bool(frame["states_agree"].all()), "measured", f"{groups}: states equal after a step"),
        answer(
            "RL-P-003",
            float(scaled["mean_difference"] / plain["mean_difference"]),
            "measured",
            "mean difference of weights to the flat layout, with the division over without",
        ),
        answer("RL-P-004", float(plain["mean_difference"]), "measured", f"{groups}, row-wise Adagrad"),
        answer("RL-P-005", float(plain["more_bytes"] / plain["formula_bytes"]), "measured", f"{groups}, bytes of rows"),
    ]
