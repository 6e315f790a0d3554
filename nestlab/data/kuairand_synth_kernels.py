"""Kernels of KuaiRand's twins: the walk of users through clusters of videos, the rows of the log, and their text.

Random numbers are SplitMix64's (Steele, Lea, Flood 2014), a stream for each (seed, purpose, user): rows do not depend
on blocks, threads, or on how often it is made. The kernels call each other's helpers, so they share this module.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uint64

from nestlab.data.kuairand_format import BEIJING_HOURS, COLUMNS, HOUR_MS
from nestlab.jit import inlined, jit
from nestlab.splitmix import GOLDEN, mix

DAY_MS = 24 * HOUR_MS
_DAYS_TO_2022_04_08 = 19_090
START_MS = _DAYS_TO_2022_04_08 * DAY_MS - BEIJING_HOURS * HOUR_MS  # midnight in Beijing
DAYS = 31
SPAN_MS = DAYS * DAY_MS
BORDER_MS = START_MS + 14 * DAY_MS  # 04-22, where the second file starts
BIN_MS = 6 * HOUR_MS  # within it, which of a cluster's exposures comes first is drawn
BINS = SPAN_MS // BIN_MS
MOST_TASTES = 16
LINE_BYTES = 200  # no line is longer: 19 values, of which six may have more than 5 digits

# The actions without a click, and given one: like, follow, comment, forward, hate, profile entered.
GIVEN = np.array(
    [(0.0055, 0.00034, 0.00012, 0.00013, 0.00084, 0.0022), (0.0318, 0.0026, 0.0056, 0.0018, 0.00082, 0.0391)]
)
_ACTION_COLUMNS = tuple(
    COLUMNS.index(n) for n in ("is_like", "is_follow", "is_comment", "is_forward", "is_hate", "is_profile_enter")
)
AHEAD = 0.175  # rows whose hourmin is an hour ahead
COPIES, TIES = 0.0205, 0.0165  # rows that copy the one before, or share its millisecond
CLICK_NOISE, LONG_NOISE = 0.022, 0.014  # rows whose label is not what the rule over play time and duration says
CLICK_MS, LONG_MS = 7_000, 18_000  # the rules' thresholds; a shorter video must have played whole
LONG_GIVEN_VALID = 0.71
# Of the random log: published are clicks, likes, hates and long views. A click pleases less there: fewer are liked or
# long views. What else shows pleasure is taken to fall as likes do.
RANDOM_GIVEN = 0.475 * GIVEN
RANDOM_GIVEN[:, 4] = 1.37 * GIVEN[:, 4]
RANDOM_LONG_GIVEN_VALID = 0.44
EXPLORE = 0.2  # rows that leave the last one's cluster for one that need not be the user's own
STAY_CAP_MS = 300_000


class Walk(NamedTuple):
    """What the walk depends on. Distribution functions are [k] float64, the last value 1."""

    seed: int
    log: int
    hours: np.ndarray
    clusters: np.ndarray
    tastes: int
    session: float
    gap_ms: float
    gap_sigma: float
    stay: float


class Walked(NamedTuple):
    """n rows, sorted by user and time: [n] int64 user, time; [n] int32 cluster; [n] bool: copies the row before."""

    user: np.ndarray
    time: np.ndarray
    cluster: np.ndarray
    copied: np.ndarray


class World(NamedTuple):
    """What the rows depend on beside the walk.

    user_terms [U, 3], video_terms [V, 3] float32: a weight and two factors of the logit. duration [V] int32 ms.
    cluster_of [V] int32. dates [DAYS + 2] int64 (YYYYMMDD). tabs [k] int64, tab_cdf [k], tab_logit, tab_zero [15].
    given [2, 6]: as GIVEN. long_given_valid: how often a valid play is a long view. handicap: taken off the logits.
    """

    user_terms: np.ndarray
    video_terms: np.ndarray
    liking: float
    duration: np.ndarray
    cluster_of: np.ndarray
    dates: np.ndarray
    tabs: np.ndarray
    tab_cdf: np.ndarray
    tab_logit: np.ndarray
    tab_zero: np.ndarray
    given: np.ndarray
    long_given_valid: float
    handicap: float


def at_random(world: World, handicap: float) -> World:
    """The same world where videos are shown at random."""
    return world._replace(given=RANDOM_GIVEN, long_given_valid=RANDOM_LONG_GIVEN_VALID, handicap=handicap)


@inlined
def _stream(seed, purpose, user):
    return mix(mix(uint64(seed) + uint64(purpose + 1) * GOLDEN) + uint64(user))


@jit
def _uniform(state):
    """In (0, 1); advances state [1] uint64."""
    state[0] += GOLDEN
    return (float(mix(state[0]) >> uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@jit
def _normal(state):
    return np.sqrt(-2.0 * np.log(_uniform(state))) * np.cos(2.0 * np.pi * _uniform(state))


@jit
def _draw(cdf, u):
    """The first place whose value exceeds u."""
    low, high = 0, len(cdf) - 1
    while low < high:
        middle = (low + high) >> 1
        if cdf[middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def _own_clusters(walk, user, into):
    """Writes the user's clusters, the favourite first."""
    state = np.empty(1, np.uint64)
    state[0] = _stream(walk.seed, 100, user)
    for i in range(walk.tastes):
        into[i] = _draw(walk.clusters, _uniform(state))


@jit
def own_clusters(walk, users):
    """[n, tastes] int64."""
    found = np.empty((len(users), walk.tastes), np.int64)
    for i in range(len(users)):
        _own_clusters(walk, users[i], found[i])
    return found


@jit
def _user_times(walk, state, time):
    """Fills time [L] ascending: sessions that start as hours and days have it, and what follows in minutes."""
    now = np.int64(0)
    for j in range(len(time)):
        if j and _uniform(state) < walk.session:
            now += np.int64(walk.gap_ms * np.exp(walk.gap_sigma * _normal(state)))
        else:
            now = _draw(walk.hours, _uniform(state)) * HOUR_MS + np.int64(_uniform(state) * HOUR_MS)
        while now >= SPAN_MS:
            now = _draw(walk.hours, _uniform(state)) * HOUR_MS + np.int64(_uniform(state) * HOUR_MS)
        time[j] = START_MS + now
    time.sort()


@jit
def walk_users(walk, first, lengths, out):
    """Fills `out` with the rows of the users first …, lengths [users] rows each."""
    own, state = np.empty(MOST_TASTES, np.int64), np.empty(1, np.uint64)
    at, copies = 0, 0.0 if walk.log else COPIES  # the random log has ten copies, in a million rows
    for i in range(len(lengths)):
        user, stop = first + i, at + lengths[i]
        _own_clusters(walk, user, own)
        state[0] = _stream(walk.seed, 200 + walk.log, user)
        time = out.time[at:stop]
        _user_times(walk, state, time)
        cluster, settled = own[0], True
        for j in range(len(time)):
            # A row is tied to the one before only if that one keeps its own time.
            copied = j > 0 and settled and _uniform(state) < copies
            tied = j > 0 and settled and not copied and _uniform(state) < TIES
            if copied or tied:
                time[j] = time[j - 1]
            settled = not (copied or tied)
            if not copied and (j == 0 or _uniform(state) >= walk.stay):
                if _uniform(state) < EXPLORE:
                    cluster = _draw(walk.clusters, _uniform(state))
                else:  # every next taste half as likely; what is left over is the first one's
                    pick = 0
                    while pick < walk.tastes - 1 and _uniform(state) < 0.5:
                        pick += 1
                    cluster = own[pick]
            out.user[at + j], out.cluster[at + j], out.copied[at + j] = user, cluster, copied
        at = stop


@jit
def count_demand(walked, demand):
    """Adds to demand [clusters, BINS] int64 the rows that need an exposure of their own."""
    for i in range(len(walked.time)):
        if not walked.copied[i]:
            demand[walked.cluster[i], (walked.time[i] - START_MS) // BIN_MS] += 1


@jit
def take_exposures(walked, exposures, taken, video):
    """Fills video [n] int64 from the plan; taken [clusters, BINS] int64: where each cell's next exposure lies."""
    for i in range(len(video)):
        if walked.copied[i]:
            video[i] = video[i - 1]
            continue
        cell = (walked.time[i] - START_MS) // BIN_MS
        video[i] = exposures[taken[walked.cluster[i], cell]]
        taken[walked.cluster[i], cell] += 1


@jit
def pick_at_random(walk, walked, pool, video):
    """Fills video [n] int64, uniform over 0 … pool − 1."""
    state = np.empty(1, np.uint64)
    last = -1
    for i in range(len(video)):
        if walked.user[i] != last:
            last = walked.user[i]
            state[0] = _stream(walk.seed, 300, last)
        video[i] = video[i - 1] if walked.copied[i] else np.int64(_uniform(state) * pool)


@jit
def _watched(state, duration, long):
    """ms played where the play counts as valid; `long`: as a long view, too."""
    whole = duration if duration > 0 else 30_000
    if whole > LONG_MS and not long:
        return CLICK_MS + 1 + np.int64((LONG_MS - CLICK_MS - 2) * _uniform(state) ** 1.3)
    if whole > CLICK_MS and whole <= LONG_MS and not long:
        return CLICK_MS + 1 + np.int64((whole - CLICK_MS - 2) * _uniform(state))
    if whole <= LONG_MS or _uniform(state) < (LONG_MS / whole) ** 0.75:
        over = 0.07 * np.exp(1.75 * _normal(state))  # to the end and on: most stop soon, some see it again
        return whole + np.int64(whole * min(over, 60.0) * min(1.0, 60_000 / whole))
    if _uniform(state) < 0.08:
        return whole - np.int64(whole * 0.05 * _uniform(state))
    return np.int64(LONG_MS * (whole / LONG_MS) ** (_uniform(state) ** 0.85))


@jit
def _left(state, duration):
    """ms played where the play does not count: about 2 s, less than the whole and than the threshold."""
    most = CLICK_MS if duration <= 0 or duration > CLICK_MS else duration
    for _ in range(20):
        played = np.int64(2_200 * np.exp(0.72 * _normal(state)))
        if 300 < played < most:
            return played
    return np.int64(most // 2)


@jit
def _stay_ms(state):
    return min(np.int64(6_200 * np.exp(1.0 * _normal(state))), np.int64(STAY_CAP_MS))


@jit
def _behaviour(state, world, row, p):
    """Fills in what the user did: [19] int64, of which duration and tab are there already."""
    click = _uniform(state) < p
    # The label's noise, turned round: what was played follows the label but in so many rows. Tabs that play only what
    # is clicked play nothing else.
    valid = (click != (_uniform(state) < CLICK_NOISE)) and (click or world.tab_zero[row[18]] < 1.0)
    long = valid and _uniform(state) < world.long_given_valid
    row[5], row[12] = click, 0
    if valid:
        row[12] = _watched(state, row[13], long)
        long = long or (0 < row[13] <= CLICK_MS)
    elif _uniform(state) >= world.tab_zero[row[18]]:
        row[12] = _left(state, row[13])
    row[11] = long != (click and _uniform(state) < LONG_NOISE)
    for i in range(len(_ACTION_COLUMNS)):
        row[_ACTION_COLUMNS[i]] = _uniform(state) < world.given[1 if click else 0, i]
    row[14] = _stay_ms(state) if row[16] and _uniform(state) < 0.004 else 0
    row[15] = _stay_ms(state) if _uniform(state) < (0.096 if click else 0.002) else 0


@jit
def _logit(world, walk, user, video, own):
    z = world.user_terms[user, 0] + world.video_terms[video, 0]
    z += world.user_terms[user, 1] * world.video_terms[video, 1]
    z += world.user_terms[user, 2] * world.video_terms[video, 2]
    for i in range(walk.tastes):
        if own[i] == world.cluster_of[video]:
            return z + world.liking
    return z


@jit
def fill_rows(world, walk, walked, video, rows, p):
    """Fills rows [n, 19] int64, the log's columns, and p [n] float64, the planted click probabilities."""
    own, state = np.empty(MOST_TASTES, np.int64), np.empty(1, np.uint64)
    last = -1
    for i in range(len(video)):
        if walked.copied[i]:
            rows[i], p[i] = rows[i - 1], p[i - 1]
            continue
        user, time = walked.user[i], walked.time[i]
        if user != last:
            last = user
            _own_clusters(walk, user, own)
            state[0] = _stream(walk.seed, 400 + walk.log, user)
        tab = world.tabs[_draw(world.tab_cdf, _uniform(state))]
        logit = world.tab_logit[tab] + _logit(world, walk, user, video[i], own) - world.handicap
        p[i] = 1.0 / (1.0 + np.exp(-logit))
        row = rows[i]
        row[0], row[1], row[4], row[13] = user, video[i], time, world.duration[video[i]]
        told = time - START_MS + (HOUR_MS if _uniform(state) < AHEAD else 0)
        row[2], row[3] = world.dates[told // DAY_MS], told // HOUR_MS % 24 * 100
        row[17], row[18] = walk.log, tab
        _behaviour(state, world, row, p[i])


@jit
def write_lines(rows, wanted, text):
    """Writes the rows where wanted [n] as lines of numbers with commas into text; returns how many bytes."""
    at = 0
    digits = np.empty(20, np.uint8)
    for i in range(len(rows)):
        if not wanted[i]:
            continue
        for j in range(rows.shape[1]):
            value, count = uint64(rows[i, j]), 0
            while value >= uint64(10):
                rest = value // uint64(10)
                digits[count] = value - rest * uint64(10)
                value, count = rest, count + 1
            text[at] = 48 + value
            for k in range(count):
                text[at + 1 + k] = 48 + digits[count - 1 - k]
            at += 1 + count
            text[at] = 44
            at += 1
        text[at - 1] = 10
    return at
