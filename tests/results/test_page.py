"""One page over all runs: whole, self-contained, harmless whatever the runs say, and right in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from made_runs import REAL, TWIN, amend, finished
from matplotlib.figure import Figure

from nestlab import results
from nestlab.errors import UserError
from nestlab.results import page
from nestlab.results.page.sparkline import HEIGHT, WIDTH, sparkline
from nestlab.results.page.views import shown as words_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


class Page(HTMLParser):
    """What the page holds: its tags with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def full(tmp_path) -> Path:
    """Runs of all kinds, one of them with everything that a run can leave."""
    whole = finished(tmp_path, {"lr": 0.1, "scale": "smoke"}, 0, auc=0.7, word="text")
    whole.figure("time line", Figure(figsize=(1, 1)))
    for name in ("trace.json.gz", "notebook.ipynb", "stdout.log"):
        (whole.path / name).write_bytes(b"x")
    (whole.path / "stderr.log").touch()
    finished(tmp_path, {"lr": 0.1, "scale": "smoke"}, 1, auc=0.8)
    finished(tmp_path, {"lr": 0.1}, 1, REAL, auc=0.75)
    amend(finished(tmp_path, {}, 2, auc=0.1234567), status="failed", exception="ValueError: no")
    amend(finished(tmp_path, {}, 3, None, auc=0.5), title=EVIL, summary={EVIL: 1.5, "b": EVIL}, params={EVIL: EVIL})
    hostile = results.start("evil", {}, results_dir=tmp_path, title=EVIL)
    hostile.dataset(TWIN | {"title": EVIL, "id": EVIL})
    hostile.finish("failed", exception=EVIL)
    broken = tmp_path / "bad" / "<b>'\"&"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{")
    return tmp_path


@pytest.fixture(autouse=True)
def dataset_may_be_absent(monkeypatch):
    record = results.Run.dataset
    monkeypatch.setattr(results.Run, "dataset", lambda self, info: info and record(self, info))


def test_everything_is_on_it(full):
    shown = Page(results.write_index(full))
    runs = [a for a in shown.all("article") if a["class"] == "run"]
    assert len(runs) == 7 and {a["data-status"] for a in runs} == {"ok", "failed"}
    assert {a["data-experiment"] for a in runs} == {"quickstart", "evil", "bad"}
    for words in ("SYNTHETIC", "criteo-1tb (5,000 rows), real data", "via library", "7 runs: 3 failed, 4 ok"):
        assert words in shown.text
    assert "ValueError: no" in shown.text and "0.1235" not in shown.text  # a failed run has no figures to show


def test_every_link_leads_to_a_file_and_nothing_leads_out(full):
    shown = Page(results.write_index(full))
    links = [a["href"] for a in shown.all("a") if not a["href"].startswith("#")] + [a["src"] for a in shown.all("img")]
    assert all((full / unquote(link)).is_file() for link in links)
    names = {Path(unquote(link)).name for link in links}
    assert names == {"time line.png", "trace.json.gz", "notebook.ipynb", "stdout.log", "steps.parquet", "manifest.json"}
    assert not re.search(r"https?:|//[a-z]|@import|url\(", shown.source)


def test_what_runs_say_stays_text(full):
    shown = Page(results.write_index(full))
    assert len(shown.all("script")) == 1 and all("onerror" not in attributes for _, attributes in shown.tags)
    assert EVIL in shown.text and EVIL not in shown.source


def test_figures_over_time_are_of_one_experiment_data_set_and_scale(full):
    shown = Page(results.write_index(full))
    labels = [a["aria-label"] for a in shown.all("svg")]
    assert "auc: 0.7 → 0.8 over 2 runs" in labels and "auc: 0.75" in labels


def test_no_techniques_and_plain_are_one_course(tmp_path):
    """Seen to fail where nothing was a setting of its own, with nothing for its name."""
    for number, techniques in enumerate(("", "plain", "nestpipe")):
        finished(tmp_path, {"techniques": techniques}, number, auc=0.5 + number / 10)
    shown = Page(results.write_index(tmp_path))
    labels = [a["aria-label"] for a in shown.all("svg")]
    assert "auc: 0.5 → 0.6 over 2 runs" in labels and "auc: 0.7" in labels and "techniques plain" in shown.text


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [1.0, 3.0, 2.0], [-1e308, 1e308, 0.0], [5e-324, 0.0]])
def test_a_sparkline_stays_in_its_frame(values):
    drawn = sparkline(values, "a & b")
    numbers = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", drawn)]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers)
    assert "nan" not in drawn and "a &amp; b" in drawn and len(numbers) == (len(values) if len(values) > 1 else 0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("peak_bytes", 727875584, "694.2 MiB"),
        ("peak_bytes", 1000, "1,000"),
        ("rows", 5000, "5,000"),
        ("auc", 0.712345, "0.7123"),
        ("rate", 123456.7, "123,457"),
        ("on", True, "true"),
        ("no", None, "null"),
        ("list", [1, "é"], '[1, "é"]'),
        ("word", "a b", "a b"),
    ],
)
def test_values_are_readable(name, value, words):
    assert words_of(name, value) == words


def test_no_runs(tmp_path):
    assert "No runs yet" in Page(results.write_index(tmp_path / "new")).text


def test_other_settings_are_other_courses(tmp_path):
    """A figure over time is of one setting; seeds are the only thing that may differ."""
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            finished(tmp_path, {"lr": lr}, seed, auc=lr + seed)
    text = Page(results.write_index(tmp_path)).text
    assert "lr 0.1 · measured · 2 runs" in text and "lr 0.2 · measured · 2 runs" in text


def test_other_parts_can_be_added(full, monkeypatch):
    def refuses(root, runs):
        raise UserError("<no> claims")

    monkeypatch.setattr("nestlab.results.page.trends.section", refuses)
    shown = Page(results.write_index(full, extra=[("Claims & more", "<table id='claims'></table>")]))
    assert [a["id"] for a in shown.all("table") if "id" in a] == ["claims"] and "Claims & more" in shown.text
    assert "could not be made: <no> claims" in shown.text
    monkeypatch.setattr(page, "SECTIONS", ["nestlab.results.page.runs:section"])
    assert len(Page(results.write_index(full)).all("section")) == 1


def test_a_reader_never_sees_half_a_page(full):
    sizes = []
    path = results.write_index(full)
    writers = [threading.Thread(target=results.write_index, args=(full,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        sizes.append(path.read_text(encoding="utf-8").endswith("</html>\n"))
    assert all(sizes) and not list(full.glob(".index*"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        results.write_index(tmp_path / "file")


PROBE = """
<script>addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const select = document.querySelector("select[name=experiment]");
  select.value = "evil"; select.dispatchEvent(new Event("change", {bubbles: true}));
  const shown = [...document.querySelectorAll(".run")].filter((run) => run.checkVisibility()).length;
  document.documentElement.setAttribute("data-probe", [document.title, shown, wide].join("|"));
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [1400, 390])
def test_in_a_browser_it_filters_fits_and_runs_nobody_s_script(full, tmp_path, width):
    """A frame of the wanted width: a headless window has a smallest one of its own."""
    path = results.write_index(full)
    inner = path.with_name("inner.html")
    inner.write_text(path.read_text(encoding="utf-8") + PROBE, encoding="utf-8")
    outer = path.with_name("outer.html")
    outer.write_text(
        f'<iframe src="inner.html" style="width:{width}px;height:900px" onload="setTimeout(() => '
        'document.title = this.contentDocument.documentElement.dataset.probe, 200)"></iframe>'
    )
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--virtual-time-budget=3000",
    ]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1500,1000", "--dump-dom", outer.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=60)
    assert "<title>NestLab results|1|0</title>" in done.stdout, done.stdout[-500:]
