"""An independent reader of the raw Criteo format, one line and one field at a time, in plain Python."""

import math

NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
DIGITS = "0123456789"


def whole_number(text):
    body = text[1:] if text[:1] == "-" else text
    if not body or any(c not in DIGITS for c in body):
        return None
    return int(text)


def read_line(line: bytes):
    """(values, short) for a good line, None for a broken one."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fields = text.split("\t")
    if not 2 <= len(fields) <= 40:
        return None
    if len(fields) == 39 and len(fields[13]) == 8 and all(c in "0123456789abcdefABCDEF" for c in fields[13]):
        return None  # a row of the test file: no label, and C1 where I13 should be
    short = len(fields) < 40
    fields += [""] * (40 - len(fields))
    values = []
    for name, field in zip(NAMES, fields, strict=True):
        if field == "" and name != "label":
            values.append(None)
        elif name[0] == "C":
            if len(field) > 8 or any(c not in "0123456789abcdefABCDEF" for c in field):
                return None
            values.append(int(field, 16))
        else:
            value = whole_number(field)
            if value is None or not -(2**31) <= value < 2**31 or (name == "label" and value not in (0, 1)):
                return None
            values.append(value)
    return values, short


def read_file(path):
    """(rows, number of short lines, numbers of the broken lines)"""
    text = path.read_bytes().replace(b"\r\n", b"\n")
    lines = text.split(b"\n")
    while lines and not lines[-1]:
        lines.pop()
    rows, short, broken = [], 0, []
    for number, line in enumerate(lines, 1):
        result = read_line(line)
        if result is None:
            broken.append(number)
        else:
            rows.append(result[0])
            short += result[1]
    return rows, short, broken


def batch(rows):
    """(dense [B][13], ids, lengths, labels) of a batch in the convention dlrm-log1p."""
    dense = [[math.log1p(max(v, 0)) if v is not None else 0.0 for v in row[1:14]] for row in rows]
    columns = list(zip(*(row[14:] for row in rows), strict=True))
    ids = [v for column in columns for v in column if v is not None]
    lengths = [int(v is not None) for column in columns for v in column]
    return dense, ids, lengths, [float(row[0]) for row in rows]


def made_rows(count, seed=0):
    """Rows with every kind of field: negative, zero and large integers, small and large hashes, missing groups."""
    import random

    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        dense = [draw.choice([None, 0, 1, -1, -3, draw.randrange(2_000_000)]) for _ in range(13)]
        ids = [draw.choice([None, 0, 1, 0xFFFFFFFF, draw.randrange(2**32)]) for _ in range(26)]
        if draw.random() < 0.3:
            ids[18] = ids[19] = ids[24] = ids[25] = None
        rows.append([draw.randrange(2), *dense, *ids])
    return rows


def write_line(row) -> bytes:
    dense = ["" if v is None else str(v) for v in row[:14]]
    ids = ["" if v is None else f"{v:08x}" for v in row[14:]]
    return "\t".join(dense + ids).encode()


def write_file(path, rows, end=b"\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(write_line(row) + end for row in rows))
    return path
