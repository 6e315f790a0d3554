"""Files written whole, and nothing replaced that is no file."""

from __future__ import annotations

import os
import threading

import pytest

from nestlab.errors import UserError
from nestlab.files import write_atomic

pytestmark = pytest.mark.core


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"old", b"new"):
        assert write_atomic(path, content) == path
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.txt"]


def test_a_link_is_followed(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"told")
    reader.join(10)
    assert heard == [b"told"] and pipe.is_fifo()


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_folder_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is a folder; name a file"):
        write_atomic(name, b"")


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        write_atomic(tmp_path / "no" / "such" / "folder", b"")
    assert os.listdir(tmp_path) == []
