"""Raw lines → values: against an independent reader, on made, mutated and arbitrary lines."""

import gzip

import criteo_oracle as oracle
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nestlab.data.criteo_format import COLUMNS, SCHEMA, BrokenLine, decode_hex8, parse_block, parse_line
from nestlab.data.lines import read_lines
from nestlab.errors import UserError

GOOD = oracle.write_line([1, 5, -2, *[None] * 11, 0xDEADBEEF, *[7] * 25])

maybe_int = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
maybe_id = st.one_of(st.none(), st.integers(0, 2**32 - 1))
row = st.tuples(
    st.integers(0, 1), st.lists(maybe_int, min_size=13, max_size=13), st.lists(maybe_id, min_size=26, max_size=26)
).map(lambda parts: [parts[0], *parts[1], *parts[2]])
# Pieces that a number parser may take although they are no number of this format.
WORDS = (
    b"|0|1|2|7|-1|+1| 1|1 |0x1|1.0|1e3|--1|-|01|-0|nan|NULL|2147483648|-2147483649|deadbeef|DEADBEEF|abc|deadbeef0"
    b"|dead-eef"
)
piece = st.sampled_from([*WORDS.split(b"|"), b"9" * 70, b'"1"', b"\xff", "é".encode(), b"\r", b"\x00", b"1\r"])


def values(parsed):
    table = parsed.table
    assert table.schema == SCHEMA
    return [list(r) for r in zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)]


def check(lines):
    """Both readers agree on what is good, short and broken, and on every value."""
    expected = [oracle.read_line(line) for line in lines]
    parsed = parse_block(lines, first=10)
    assert values(parsed) == [e[0] for e in expected if e is not None]
    assert parsed.short == sum(e[1] for e in expected if e is not None)
    assert [r.line for r in parsed.rejects] == [10 + i for i, e in enumerate(expected) if e is None]
    assert [r.raw for r in parsed.rejects] == [line for line, e in zip(lines, expected, strict=True) if e is None]


@pytest.mark.core
@given(st.lists(row, max_size=20))
@settings(max_examples=50, deadline=None)
def test_rows_survive_a_round_trip(rows):
    parsed = parse_block([oracle.write_line(r) for r in rows])
    assert values(parsed) == rows
    assert (parsed.short, parsed.rejects) == (0, [])


@pytest.mark.core
@given(row, st.integers(0, 39), piece, st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_a_strange_field_among_good_lines_is_judged_as_by_the_oracle(values, column, strange, before):
    fields = oracle.write_line(values).split(b"\t")
    fields[column] = strange
    check([GOOD] * before + [b"\t".join(fields)] + [GOOD] * 3)


@pytest.mark.core
@given(st.lists(st.one_of(st.just(GOOD), st.binary(max_size=60).map(lambda b: b.replace(b"\n", b""))), max_size=70))
@example([b"", b"1", b"1\t", b"\t", GOOD + b"\t", GOOD.rstrip(b"\t"), b"\t" * 39])
@settings(max_examples=100, deadline=None)
def test_arbitrary_lines_are_judged_as_by_the_oracle(lines):
    check(lines)


@pytest.mark.core
@given(row, st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_missing_trailing_fields_are_missing_values(values, kept):
    check([b"\t".join(oracle.write_line(values).split(b"\t")[:kept])])


@pytest.mark.parametrize(
    ("line", "reason", "column"),
    [
        (b"", "empty line", ""),
        (b"1", "fewer than 2 fields", ""),
        (b"\t" * 40, "more than 40 fields", ""),
        (b"2" + b"\t" * 39, "label not 0 or 1", "label"),
        (b"\t" * 39, "label not 0 or 1", "label"),
        (b"0\t\tx", "not an integer", "I2"),
        (b"0\t1.5", "not an integer", "I1"),
        (b"0\t2147483648", "integer out of range", "I1"),
        (b"0" + b"\t" * 14 + b"xyz", "bad hex", "C1"),
        (b"0" + b"\t" * 14 + b"123456789", "bad hex", "C1"),
        (b"0\t\xff", "undecodable bytes", ""),
        (b"1" + b"\t" * 13 + b"05091640" + b"\t" * 25, "39 fields without a label", ""),
    ],
)
def test_a_broken_line_says_why(line, reason, column):
    with pytest.raises(BrokenLine) as caught:
        parse_line(line)
    assert (caught.value.reason, caught.value.column) == (reason, column)


@pytest.mark.core
def test_a_label_that_is_a_number_but_no_label_is_refused_among_good_lines():
    check([GOOD, b"2" + GOOD[1:], GOOD, b"-1" + GOOD[1:], b"" + GOOD[1:]])
    check([GOOD, b"2" + GOOD[1:]])


@pytest.mark.core
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_eight_hex_digits_at_once(numbers):
    for form in ("{:08x}", "{:08X}"):
        text = "".join(form.format(n) for n in numbers).encode()
        decoded, valid = decode_hex8(np.frombuffer(text, np.uint8).reshape(-1, 8))
        assert decoded.tolist() == numbers
        assert valid.all()


def test_a_minus_sign_is_no_hex_digit():
    assert decode_hex8(np.frombuffer(b"0000-000", np.uint8).reshape(1, 8))[1].tolist() == [False]


def lines_of(path, block=1 << 20, limit=None):
    found = list(read_lines(path, block, limit))
    flat = [line for _, lines in found for line in lines]
    assert [first for first, _ in found] == list(np.cumsum([1] + [len(lines) for _, lines in found])[:-1])
    return flat


@given(
    st.lists(st.sampled_from([b"", b"a", b"bb", b"c\rd", b"long line"]), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(0, 3),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(1, 14)),
)
@settings(max_examples=100, deadline=None)
def test_lines_do_not_depend_on_blocks(tmp_path_factory, lines, end, tail, block, limit):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(end.join(lines) + end * tail)
    while lines and not lines[-1]:  # empty lines at the end of a file are no lines
        lines = lines[:-1]
    assert lines_of(path, block, limit) == lines[:limit]


def test_gzip_is_read_and_a_damaged_one_is_named(tmp_path):
    whole = gzip.compress(GOOD + b"\n" + GOOD)
    path = tmp_path / "day_0.gz"
    path.write_bytes(whole)
    assert lines_of(path) == [GOOD, GOOD]
    path.write_bytes(whole[:-12])
    with pytest.raises(UserError, match="damaged gzip"):
        lines_of(path)


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("nestlab.data.lines.LONGEST_LINE", 1000)
    path = tmp_path / "x"
    path.write_bytes(b"a\n" + b"x" * 5000)
    with pytest.raises(UserError, match="line 2 is longer"):
        lines_of(path, 100)
