"""An independent reader of KuaiRand's files, one line and one field at a time, in plain Python; and made rows."""

import csv
import random

LOG = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)
USERS = (
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,follow_user_num,"
    "follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,friend_user_num_range,register_days,"
    "register_days_range," + ",".join(f"onehot_feat{i}" for i in range(18))
)
VIDEOS = (
    "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,server_width,server_height,"
    "music_id,music_type,tag"
)
NAMES = LOG.split(",")
ACTIONS = {"is_click": 1, "is_like": 2, "is_follow": 4, "is_comment": 8, "is_forward": 16, "is_hate": 32}
ACTIONS |= {"long_view": 64, "is_profile_enter": 128}
NOON = 1_650_686_400_000  # 2022-04-23 12:00 in Beijing
EARLY, LATE, RANDOM = (
    f"log_{part}_pure.csv" for part in ("standard_4_08_to_4_21", "standard_4_22_to_5_08", "random_4_22_to_5_08")
)
USER = (
    '{},full_active,0,-124,1,514,500+,150,"[100,1k)",34,"[30,60)",799,730+,1,1,29,949,1.0,0,0,14,135,6,3,0,'
    "0.0,1.0,0.0,0.0,0.0,0.0"
)


def event(user=0, video=0, time_ms=NOON, **more):
    """One row of the log, as a dict; date and hourmin say nothing true."""
    values = dict.fromkeys(NAMES, 0) | {"user_id": user, "video_id": video, "time_ms": time_ms}
    values |= {"date": 20220423, "hourmin": 1200, "play_time_ms": 2000, "duration_ms": 60_000, "tab": 1}
    return values | more


def line(row):
    return ",".join(str(row[name]) for name in NAMES)


def write(folder, name, lines, header):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([header, *lines]) + "\n")
    return folder / name


def write_log(root, rows, name=LATE):
    """The rows (dicts, or raw lines) as a log file of KuaiRand-Pure under `root`."""
    lines = [row if isinstance(row, str) else line(row) for row in rows]
    return write(root / "KuaiRand-Pure" / "data", name, lines, LOG)


def write_users(root, lines):
    return write(root / "KuaiRand-Pure" / "data", "user_features_pure.csv", lines, USERS)


def write_videos(root, lines):
    return write(root / "KuaiRand-Pure" / "data", "video_features_basic_pure.csv", lines, VIDEOS)


def read_log(*paths):
    """Every row of the files as a dict of integers, in the order of time, and of reading where times are equal."""
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [{name: int(text) for name, text in row.items()} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: row["time_ms"])


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def whole(text):
    """The integer that a field of a feature table stands for; None where it is missing."""
    if text in ("", "nan", "NaN"):
        return None
    value = int(float(text))
    return None if value == -124 else value


def histories(rows, limit):
    """For each row in the order given: [(video_id, action bits, gap in ms)] of its user's last `limit` rows before, of
    earlier milliseconds."""
    seen, found = {}, []
    for row in rows:
        mine = seen.setdefault(row["user_id"], [])
        end = len(mine)
        while end and mine[end - 1][2] == row["time_ms"]:
            end -= 1
        found.append([(v, a, row["time_ms"] - t) for v, a, t in mine[max(0, end - limit) : end]])
        mine.append((row["video_id"], sum(bit for name, bit in ACTIONS.items() if row[name]), row["time_ms"]))
    return found


def made_rows(count, users=4, seed=0):
    """Random rows with ties, in no order."""
    draw = random.Random(seed)
    return [
        event(
            draw.randrange(users),
            draw.randrange(9),
            NOON + draw.randrange(count // 2 + 1),
            **{name: draw.randrange(2) for name in ACTIONS},
            play_time_ms=draw.randrange(90_000),
        )
        for _ in range(count)
    ]
