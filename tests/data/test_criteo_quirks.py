"""Quirks of Criteo's files that no other test names, each on a handful of made rows in the original format.

The others: `test_criteo_format.py` (broken fields, lost tabs, ranges, hashes), `test_criteo_prepare.py` (days, gzip).
"""

import gzip

import criteo_oracle as oracle
import numpy as np
import pytest

import nestlab.data as data
from nestlab.data.criteo_format import DENSE_NAMES, FEATURES, parse_block
from nestlab.errors import UserError

# Columns that are missing together, in Kaggle's files and in those of 1TB.
KAGGLE_GROUPS = (
    *(("I1", "I10"), ("I4", "I13"), ("I7", "I9", "I11")),
    *(("C19", "C20", "C25", "C26"), ("C3", "C4", "C12", "C16", "C21", "C24")),
)
TERABYTE_GROUPS = (
    *(("I3", "I13"), ("I5", "I11"), ("I6", "I10")),
    *(("C14", "C16", "C17", "C23"), ("C1", "C10", "C11", "C20", "C21", "C22")),
)


def fields(label=0, **named):
    """A whole row, as fields by name; every integer 3, every hash its column's number."""
    values = {"label": str(label)} | dict.fromkeys(DENSE_NAMES, "3")
    values |= {name: f"{number:08x}" for number, name in enumerate(FEATURES, 1)}
    return values | named


def line(label=0, **named) -> bytes:
    return "\t".join(fields(label, **named).values()).encode()


def opened(root, lines, name="criteo-kaggle", file="criteo-kaggle/train.txt"):
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(text + b"\n" for text in lines))
    return data.open_dataset(name, root, prepared=root / "prepared")


def whole(dataset):
    (batch,) = dataset.batches("all", 100)
    return batch


def dense_of(batch, name):
    return batch.dense[:, DENSE_NAMES.index(name)].tolist()


@pytest.mark.parametrize(("name", "file", "column"), [
    ("criteo-kaggle", "criteo-kaggle/train.txt", "I2"),
    ("criteo-1tb", "criteo-1tb/day_0", "I8"),
])  # fmt: skip
def test_the_one_column_with_negative_values_keeps_them_and_batches_take_them_for_0(tmp_path, name, file, column):
    """I2 goes to -3 in Kaggle's file, I8 to -1 in those of 1TB; log(1 + x) has no value at -1."""
    dataset = opened(tmp_path, [line(**{column: text}) for text in ("-3", "-1", "0", "7", "")], name, file)
    assert dataset.table.column(column).to_pylist() == [-3, -1, 0, 7, None]
    made = dense_of(whole(dataset), column)
    assert made == pytest.approx([0, 0, 0, np.log(8), 0])
    assert dataset.info.convention == "dlrm-log1p"


@pytest.mark.parametrize("groups", [KAGGLE_GROUPS, TERABYTE_GROUPS])
def test_groups_of_columns_are_missing_together_and_alone(tmp_path, groups):
    """A missing group takes no neighbour with it, and a batch has an empty run for each of its columns."""
    dataset = opened(tmp_path, [line(**dict.fromkeys(group, "")) for group in groups])
    for row, values in enumerate(dataset.table.to_pylist()):
        assert tuple(name for name, value in values.items() if value is None) == groups[row]
    lengths = whole(dataset).feature_lengths()
    for row, group in enumerate(groups):
        assert [name for name, length in zip(FEATURES, lengths[:, row].tolist(), strict=True) if not length] == [
            name for name in group if name in FEATURES
        ]


def test_a_missing_last_field_is_a_tab_at_the_end_of_the_line(tmp_path):
    """Whoever strips the line loses fields: four of them here, C24 kept, and 40 fields are there."""
    text = line(C23="", C25="", C26="")
    assert text.endswith(b"\t\t") and text.count(b"\t") == 39
    dataset = opened(tmp_path, [text, text.rstrip(b"\t")])
    first, second = dataset.table.to_pylist()
    assert first == second and first["C24"] == 24 and first["C26"] is None
    assert dataset.info.counts["rows_short"] == 1


def test_a_row_may_hold_nothing_but_its_label(tmp_path):
    dataset = opened(tmp_path, [b"1" + b"\t" * 39, line()])
    batch = whole(dataset)
    assert batch.labels.tolist() == [1, 0] and batch.feature_lengths()[:, 0].tolist() == [0] * 26
    assert batch.dense[0].tolist() == [0] * 13


def unlabelled(first_integer, first_hash) -> bytes:
    """A row of Kaggle's test.txt: as one of train.txt, without the label."""
    text = line(I1=first_integer, C1=first_hash).partition(b"\t")[2]
    assert text.count(b"\t") == 38
    return text


def test_rows_of_the_test_file_have_39_fields_and_no_label_and_are_refused(tmp_path):
    """Read as a train row that lost a tab, I1 would be its label, and every value would stand one column too early."""
    lines = [unlabelled(integer, "68fd1e64") for integer in ("0", "1", "7", "")]
    parsed = parse_block(lines)
    assert parsed.table.num_rows == 0 and len(parsed.rejects) == 4
    with pytest.raises(UserError, match="not the Criteo format") as error:
        opened(tmp_path, lines)
    assert "\n" not in str(error.value)


def test_a_row_of_the_test_file_whose_first_hash_is_of_digits_alone_is_refused_too():
    """One hash in 43 could be I13; I1 of 0 or 1 could be a label."""
    parsed = parse_block([unlabelled("1", "05091640"), line()])
    assert parsed.table.num_rows == 1 and [reject.line for reject in parsed.rejects] == [1]


def test_the_order_of_the_lines_is_the_order_of_time(tmp_path):
    """There is no time stamp: the held-out rows are the last ones, and nothing may sort before the split."""
    dataset = opened(tmp_path, [line(I1=str(i * 7 % 10)) for i in range(10)])
    assert dataset.table.column("I1").to_pylist() == [i * 7 % 10 for i in range(10)]
    (held,) = dataset.batches("heldout", 10)
    assert dense_of(held, "I1") == pytest.approx(np.log1p([6, 3]).tolist())


def test_days_are_one_sequence_whatever_their_names_sort_like(tmp_path):
    """day_10 comes after day_9, and a day that is there plain and packed is read once."""
    for day in (0, 9, 10):
        opened(tmp_path, [line(I1=str(day))], "criteo-1tb", f"criteo-1tb/day_{day}")
    (tmp_path / "criteo-1tb" / "day_9.gz").write_bytes(gzip.compress(line(I1="99") + b"\n"))
    dataset = data.open_dataset("criteo-1tb", tmp_path, prepared=tmp_path / "prepared")
    assert dataset.table.column("I1").to_pylist() == [0, 9, 10]


def test_large_counts_stay_exact(tmp_path):
    """I12 reaches 1.3 million in the first rows of 1TB, more later; a float16 ends at 65,504."""
    numbers = [1_300_000, 2**31 - 1, 65_505]
    dataset = opened(tmp_path, [line(I12=str(number)) for number in numbers])
    assert dataset.table.column("I12").to_pylist() == numbers
    assert dense_of(whole(dataset), "I12") == pytest.approx(np.log1p(numbers).tolist(), rel=1e-6)


def test_hashes_are_32_bits_without_a_sign(tmp_path):
    """Half of them are beyond int32: an id that turned negative, or merged with another, would be a wrong row."""
    texts = ["00000000", "7fffffff", "80000000", "ffffffff", "FFFFFFFF", "0000000f", "f"]
    batch = whole(opened(tmp_path, [line(C1=text) for text in texts]))
    assert batch.ids[: len(texts)].tolist() == [int(text, 16) for text in texts]


def test_a_hash_of_digits_alone_is_a_hash(tmp_path):
    """One in 43 has no letter: a reader that guesses types takes it for a number, and drops its leading zeros."""
    dataset = opened(tmp_path, [line(C1="05091640", C2="00001000"), line(C1="1e100000", C2="0000001e")])
    assert dataset.table.column("C1").to_pylist() == [0x05091640, 0x1E100000]
    assert dataset.table.column("C2").to_pylist() == [0x1000, 0x1E]


def test_the_same_hash_in_two_columns_is_two_features(tmp_path):
    """The vocabularies are by column; a batch keeps them apart by feature, never by id."""
    batch = whole(opened(tmp_path, [line(C1="0000002a", C2="0000002a")]))
    assert batch.features == FEATURES and batch.ids[:2].tolist() == [42, 42]


def test_missing_zero_and_the_hash_0_are_three_things(tmp_path):
    """Missing is no id at all; 0 is an id, and an integer of its own until a convention merges it with missing."""
    dataset = opened(tmp_path, [line(I1="", C1=""), line(I1="0", C1="00000000")])
    assert dataset.table.column("I1").to_pylist() == dataset.table.column("C1").to_pylist() == [None, 0]
    batch = whole(dataset)
    assert batch.feature_lengths()[0].tolist() == [0, 1] and dense_of(batch, "I1") == [0, 0]


def test_kaggle_and_1tb_are_never_the_same_data(tmp_path):
    """Their hashes and the order of their columns differ: what one learnt says nothing of the other's ids."""
    kaggle = opened(tmp_path, [line()])
    terabyte = opened(tmp_path, [line()], "criteo-1tb", "criteo-1tb/day_0")
    assert kaggle.info.id != terabyte.info.id
    assert (kaggle.info.title, terabyte.info.title) == (
        "Criteo Kaggle (real, 1 rows)",
        "Criteo 1TB (real, 1 rows)",
    )


def test_a_row_means_the_same_in_whatever_file_it_stands(tmp_path):
    """The shift by a file's own minimum, as torchrec has it, would make a value depend on its neighbours."""
    row = line(I2="5")
    alone = whole(opened(tmp_path / "a", [row]))
    beside = whole(opened(tmp_path / "b", [row, line(I2="-3"), line(I2="900")]))
    assert alone.dense[0].tolist() == beside.dense[0].tolist()
    assert alone.ids.tolist() == beside.ids[::3].tolist()


def test_ids_are_hashes_not_places_of_first_appearance(tmp_path):
    """Numbering by appearance, as dlrm has it, would hang on the rows before: the same line has the same ids."""
    one, two = line(C1="000000aa"), line(C1="000000bb")
    there, back = (whole(opened(tmp_path / name, rows)) for name, rows in (("a", [one, two]), ("b", [two, one])))
    assert there.ids[:2].tolist() == back.ids[:2].tolist()[::-1] == [0xAA, 0xBB]
    assert oracle.NAMES[14] == there.features[0]
