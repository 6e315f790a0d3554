"""Every data set has a card in the Hugging Face form."""

import re

import pytest
import yaml

import nestlab.data as data

NAMES = [record.name for record in data.available("nowhere")]
SECTIONS = ["Dataset description", "Source", "Columns", "Quirks", "How to prepare", "Citation", "Licence"]
SIZES = {"1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"}


def read(project, name):
    """(front matter, the text below it)"""
    _, head, text = (project / "datasets" / f"{name}.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


@pytest.mark.parametrize("name", NAMES)
def test_a_card_s_head_and_sections(project, name):
    head, text = read(project, name)
    for key in ("pretty_name", "license", "task_categories", "size_categories", "source_datasets", "tags"):
        assert key in head, key
    assert set(head["size_categories"]) <= SIZES
    assert head["configs"][0]["config_name"] == name
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
    assert f"`{name}`" in text or name.endswith("-synth")
    assert "@" in text.split("## Citation")[1].split("## Licence")[0]
    assert ("SYNTHETIC" in text) == name.endswith("-synth") == ("synthetic" in head["tags"])


def test_there_are_no_other_cards_and_no_package(project):
    cards = {path.stem for path in (project / "datasets").glob("*.md")}
    assert cards == {*NAMES, "README"}
    assert not (project / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_card_names_no_machine(project, name):
    _, text = read(project, name)
    assert not re.search(r"https?://|/(home|root|tmp|usr|mnt)/", text)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
