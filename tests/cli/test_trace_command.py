"""`nestlab trace`: a made run shown, exported, served and compared; what a user can get wrong is one line."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from nestlab import cli, results
from nestlab.tracing import Recorder, merge, read_chrome_trace, write_chrome_trace

pytest.importorskip("viztracer")
DATASET = {"id": "made", "kind": "synthetic", "rows": 3, "fingerprint": "f1", "title": "made rows (SYNTHETIC)"}


def made_run(folder, slow: int = 1, fingerprint: str = "f1", traced: bool = True, seed: int = 0) -> str:
    recorder, now = Recorder(), 10**9
    for batch in range(6):
        for stage, lane, us in (("LOAD", "load", 300), ("FORWARD", "compute", 500 * slow), ("UPDATE", "compute", 90)):
            recorder.record(lane, stage, batch, -1, now, now + us * 1000, 4096 if stage == "LOAD" else 0)
            now += us * 1000
    trace = recorder.trace(lambda *_: (), ["load", "compute"], {"how": "measured", "dataset": DATASET["title"]})
    with results.start("train", {"slow": slow}, results_dir=folder, seed=seed) as run:
        run.dataset(DATASET | {"fingerprint": fingerprint})
        if traced:
            write_chrome_trace(trace, run.path / "trace.json.gz")
    return run.id


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["trace", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_show(tmp_path, capsys):
    run = made_run(tmp_path)
    status, out, _ = call(capsys, "show", run, "--results", str(tmp_path))
    assert status == 0 and run in out and "the median of 5 steps" in out and "0.890 ms" in out
    status, out, _ = call(capsys, "show", run, "--results", str(tmp_path), "--step", "3")
    assert status == 0 and "step 3, rank 0" in out
    status, _, err = call(capsys, "show", run, "--results", str(tmp_path), "--step", "33")
    assert status == 2 and err.count("\n") == 1 and "steps 0 to 5" in err


def test_one_of_several_traces_is_named(tmp_path, capsys):
    """Without --which it is said which there are; the name may lack its `trace_`."""
    run, where = made_run(tmp_path), ("--results", str(tmp_path))
    path = results.load(run, tmp_path).path
    (path / "trace.json.gz").rename(path / "trace_after.json.gz")
    assert call(capsys, "show", run, *where)[0] == 0  # the only one there is
    other = results.load(made_run(tmp_path, slow=2), tmp_path).path / "trace.json.gz"
    other.rename(path / "trace_before.json.gz")
    status, _, err = call(capsys, "show", run, *where)
    assert status == 2 and err.count("\n") == 1 and "trace_after, trace_before by --which" in err
    for name, step in (("trace_after", "0.890 ms"), ("before", "1.390 ms")):
        status, out, _ = call(capsys, "show", run, *where, "--which", name)
        assert status == 0 and step in out
    assert "none named other" in call(capsys, "show", run, *where, "--which", "other")[2]
    status, out, _ = call(capsys, "diff", run, run, *where, "--which-a", "after", "--which-b", "before")
    assert status == 0 and "B over A: 1.562" in out
    page = tmp_path / "page.html"
    assert call(capsys, "export", run, *where, "--which", "after", "-o", str(page))[0] == 0 and page.is_file()


def test_a_run_without_a_trace_and_a_broken_trace_are_one_line(tmp_path, capsys):
    run = made_run(tmp_path, traced=False)
    path = results.load(run, tmp_path).path
    whole = gzip.compress(b'{"traceEvents": []}' * 50)
    flipped = whole[:20] + bytes(255 - byte for byte in whole[20:30]) + whole[30:]
    nulls = [b'{"traceEvents": [{"ph": "X", "ts": null}], "metadata": null}', b'{"traceEvents": null}', b"[]"]
    for broken in (None, b"", b"\x1f\x8bnothing", b"{}", flipped, *map(gzip.compress, nulls)):
        if broken is not None:
            (path / "trace.json.gz").write_bytes(broken)
        for command in (["show", run], ["export", run], ["diff", run, run], ["open", run, "--no-browser"]):
            status, _, err = call(capsys, *command, "--results", str(tmp_path))
            assert status == 2 and err.count("\n") == 1 and "trace.json.gz" in err


def test_export(tmp_path, capsys, monkeypatch):
    run = made_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, "export", run, "--html", "--results", ".")
    assert status == 0 and f"trace-{run}.html" in out
    assert "made rows (SYNTHETIC)" in (tmp_path / f"trace-{run}.html").read_text()
    status, out, _ = call(capsys, "export", run, "--hta", "h.json", "--results", ".")
    assert status == 0 and json.loads((tmp_path / "h.json").read_text())["distributedInfo"]["rank"] == 0
    status, _, err = call(capsys, "export", run, "--html", "-o", "no/such/folder.html", "--results", ".")
    assert status == 2 and err.count("\n") == 1
    status, _, err = call(capsys, "export", run, "--hta", "h.txt", "--results", ".")
    assert status == 2 and ".json.gz" in err


def test_diff(tmp_path, capsys):
    a, b = made_run(tmp_path), made_run(tmp_path, slow=2, fingerprint="f2", seed=1)
    status, out, _ = call(capsys, "diff", a, b, "--results", str(tmp_path))
    assert status == 0 and "warning: the data sets differ: made f1 | made f2" in out and "p10" in out
    status, out, _ = call(capsys, "diff", a, b, "--json", "--results", str(tmp_path))
    found = {(row["stage"], row["measure"]): row for row in json.loads(out)["stages"]}
    assert found["FORWARD", "time_ms"]["ratio"] == pytest.approx(2.0)
    status, out, _ = call(capsys, "diff", a, a, "--results", str(tmp_path))
    assert "warning" not in out


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is another thing there")
def test_open_serves_the_page_and_the_trace_until_interrupted(tmp_path):
    run = made_run(tmp_path)
    command = [sys.executable, "-m", "nestlab.cli", "trace", "open", run, "--no-browser", "--results", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split(": ", 1)[1].split()[0]
        assert url.startswith("http://127.0.0.1:")

        def get(path: str) -> bytes:
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                assert answer.status == 200
                return answer.read()

        assert b"Perfetto UI" in get("/") and get("/vizviewer_info") == b"{}"
        assert get("/localtrace") == (results.load(run, tmp_path).path / "trace.json.gz").read_bytes()
        for outside in ("/../viewer.py", "/v52.0-none/", "/%2e%2e/viewer.py"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(outside)
        taken = subprocess.run([*command, "--port", url.rsplit(":", 1)[1]], capture_output=True, text=True, timeout=60)
        assert taken.returncode == 2 and taken.stderr.count("\n") == 1 and "--port 0" in taken.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_a_run_of_several_ranks_is_shown_exported_and_compared(tmp_path, capsys, monkeypatch):
    run = made_run(tmp_path)
    path = results.load(run, tmp_path).path / "trace.json.gz"
    one = read_chrome_trace(path)
    late = replace(one, events=tuple(e._replace(rank=1, end_ns=e.end_ns + 7_000) for e in one.events))
    write_chrome_trace(merge([one, late]), path)
    alone = made_run(tmp_path, seed=1)
    status, out, _ = call(capsys, "show", run, "--rank", "1", "--results", str(tmp_path))
    assert status == 0 and "rank 1" in out and "the step on every rank" in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["0", "1"]
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, "export", run, "--hta", "h.json", "--results", ".")
    assert status == 0 and (tmp_path / "h_rank0.json").exists() and (tmp_path / "h_rank1.json").exists()
    status, out, _ = call(capsys, "diff", run, alone, "--results", ".")
    assert status == 0 and "the numbers of ranks differ: 2 | 1" in out
