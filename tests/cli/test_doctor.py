"""Each fault has a name and a remedy; what NestLab does without is no fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nestlab.cli import doctor_checks
from nestlab.interop import install


@pytest.fixture
def versions(monkeypatch):
    """Pretends that distributions are installed in given versions, and that every import works."""

    def _set(**installed):
        named = {name.replace("_", "-"): version for name, version in installed.items()}
        monkeypatch.setattr(install, "installed", named.get)
        monkeypatch.setattr(install, "import_faults", lambda modules: dict.fromkeys(modules))

    return _set


def faults(findings) -> list[str]:
    return [f"{finding.text} → {finding.remedy}" for finding in findings if finding.state == "fault"]


def test_matching_versions_are_no_fault(versions):
    versions(torch="2.13.0+cpu", torchrec="1.8.0", fbgemm_gpu_cpu="1.8.0")
    assert faults(doctor_checks.torchrec_and_fbgemm()) == []


def test_a_mismatch_names_both_sides_and_the_remedy(versions):
    versions(torch="2.13.0", torchrec="1.8.0", fbgemm_gpu_cpu="1.9.0")
    (fault,) = faults(doctor_checks.torchrec_and_fbgemm())
    assert "fbgemm-gpu-cpu 1.9.0 does not match torch 2.13.0" in fault and "make torchrec" in fault


def test_both_flavours_at_once_are_a_fault(versions):
    versions(torch="2.13.0", torchrec="1.8.0", fbgemm_gpu_cpu="1.8.0", fbgemm_gpu="1.8.0")
    (fault,) = faults(doctor_checks.torchrec_and_fbgemm())
    assert "both installed" in fault


def test_torchrec_may_be_absent(versions):
    versions(torch="2.13.0")
    findings = doctor_checks.torchrec_and_fbgemm()
    assert faults(findings) == []
    assert "torchrec rows are skipped" in findings[0].text or "no fbgemm build" in findings[0].text


def test_an_import_that_fails_is_a_fault_with_its_first_line(versions, monkeypatch):
    versions(torch="2.13.0", torchrec="1.8.0", fbgemm_gpu_cpu="1.8.0")
    monkeypatch.setattr(install, "import_faults", lambda modules: dict.fromkeys(modules, "OSError: undefined symbol"))
    assert all("undefined symbol" in fault for fault in faults(doctor_checks.torchrec_and_fbgemm()))


def test_imports_are_tried_one_by_one_even_if_one_crashes(tmp_path, monkeypatch):
    (tmp_path / "crashes.py").write_text("import os; os._exit(3)")
    (tmp_path / "raises.py").write_text("raise OSError('undefined symbol\\nsecond line')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = install.import_faults(["raises", "crashes", "json", "no_such"])
    assert found["raises"] == "OSError: undefined symbol" and "status 3" in found["crashes"]
    assert found["json"] is None and "No module named" in found["no_such"]


def test_a_results_folder_that_cannot_be_made_is_a_fault(tmp_path):
    (tmp_path / "file").write_text("")
    (fault,) = faults(doctor_checks.results_folder(tmp_path / "file" / "results"))
    assert "--results" in fault
    assert faults(doctor_checks.results_folder(tmp_path / "new" / "results")) == []
    assert not (tmp_path / "new").exists()


def test_a_folder_that_hides_the_datasets_package_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "datasets").mkdir()
    monkeypatch.chdir(tmp_path)
    assert faults(doctor_checks.huggingface_datasets()) == []  # a folder without __init__.py hides nothing
    (tmp_path / "datasets" / "__init__.py").write_text("")
    (fault,) = faults(doctor_checks.huggingface_datasets())
    assert "not the Hugging Face package" in fault


def test_data_that_is_there_is_named(real_data, tmp_path):
    assert "criteo-1tb" in doctor_checks.data(real_data)[0].text
    assert doctor_checks.data(tmp_path)[0].state == "note"


def test_the_whole_report(tmp_path):
    command = [sys.executable, "-m", "nestlab.cli", "doctor", "--json", "--results", str(tmp_path / "r")]
    done = subprocess.run([*command, "--data-root", str(tmp_path)], capture_output=True, text=True, cwd=Path.cwd())
    report = json.loads(done.stdout)
    bad = [finding for finding in report["findings"] if finding["state"] == "fault"]
    assert report["usable"] == (not bad) and done.returncode == bool(bad)
    assert all(finding["remedy"] for finding in bad)
    assert {"python", "torch", "torchrec", "machine", "disk", "data", "results"} <= {
        finding["name"] for finding in report["findings"]
    }
