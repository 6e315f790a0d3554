"""The rule of matching versions, the choice of fbgemm, and the installer's decisions."""

from __future__ import annotations

import re

import pytest

from nestlab.interop import install, versions


@pytest.mark.parametrize(("torch", "release"), [("2.13.0+cpu", (1, 8)), ("2.12.1", (1, 7)), ("2.14.0", (1, 9))])
def test_torchrec_for_torch(torch, release):
    assert versions.torchrec_for(torch) == release


@pytest.mark.parametrize("torch", ["1.13.0", "2.4.0", "3.0", "nightly"])
def test_unknown_torch(torch):
    with pytest.raises(ValueError):
        versions.torchrec_for(torch)


@pytest.mark.parametrize(
    ("torch", "torchrec", "fbgemm", "expected"),
    [
        ("2.13.0", "1.8.0", {"fbgemm-gpu-cpu": "1.8.0"}, []),
        ("2.13.0", "1.8.0+cu130", {"fbgemm-gpu": "1.8.0"}, []),
        ("2.13.0", None, {}, []),
        (None, None, {}, ["torch is not installed"]),
        ("2.13.0", "1.9.0", {"fbgemm-gpu-cpu": "1.9.0"}, ["torchrec 1.9.0 does not", "fbgemm-gpu-cpu 1.9.0 does not"]),
        ("2.14.0", "1.8.0", {"fbgemm-gpu-cpu": "1.9.0"}, ["torchrec 1.8.0 does not match torch 2.14.0 (needs 1.9)"]),
        ("2.13.0", "1.8.0", {}, ["without fbgemm"]),
        ("2.13.0", "1.8.0", {"fbgemm-gpu": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}, ["both installed"]),
        ("1.13.0", "1.8.0", {"fbgemm-gpu": "1.8.0"}, ["no torchrec release is known"]),
    ],
)
def test_mismatches(torch, torchrec, fbgemm, expected):
    found = versions.mismatches(torch, torchrec, fbgemm)
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("system", "machine", "nvidia", "torch", "flavour"),
    [
        ("Linux", "x86_64", False, None, "fbgemm-gpu-cpu"),
        ("Linux", "aarch64", False, "2.13.0", "fbgemm-gpu-cpu"),
        ("Linux", "x86_64", True, "2.13.0", "fbgemm-gpu"),
        ("Linux", "x86_64", True, "2.13.0+cpu", "fbgemm-gpu-cpu"),
        ("Linux", "riscv64", False, None, None),
        ("Darwin", "arm64", False, None, None),
        ("Windows", "AMD64", True, None, None),
    ],
)
def test_flavour(system, machine, nvidia, torch, flavour):
    assert versions.fbgemm_flavour(system, machine, nvidia, torch) == flavour


@pytest.fixture
def machine(monkeypatch):
    """A pretended Linux machine with given distributions; returns the pip commands that would run."""
    state: dict[str, str] = {name: version or "9" for name, version in install.NEEDS.items()}
    commands: list[tuple[str, ...]] = []

    def pip(*arguments):
        commands.append(arguments)

    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setattr(install.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(install, "has_nvidia", lambda: False)
    monkeypatch.setattr(install, "installed", state.get)
    monkeypatch.setattr(install, "pip", pip)
    monkeypatch.setattr(install, "verify", lambda: None)
    state["torch"] = "2.13.0+cpu"
    return state, commands


def test_all_in_place_runs_nothing(machine):
    state, commands = machine
    state |= {"torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}
    assert "in place" in install.install() and commands == []


def test_a_fresh_machine_gets_the_pair_without_dependencies(machine):
    _, commands = machine
    assert "installed" in install.install()
    assert commands[0] == ("install", "--no-deps", "torchrec==1.8.0", "fbgemm-gpu-cpu==1.8.0")
    assert commands[1][:2] == ("install", "-c") and "torchmetrics==1.0.3" in commands[1]


def test_the_other_flavour_goes_first_and_takes_the_shared_files_with_it(machine):
    state, commands = machine
    state |= {"torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0", "fbgemm-gpu": "1.8.0"}
    install.install()
    assert commands[0] == ("uninstall", "-y", "fbgemm-gpu-cpu", "fbgemm-gpu")
    assert "fbgemm-gpu-cpu==1.8.0" in commands[1]


def test_a_platform_without_builds_is_skipped(machine, monkeypatch, capsys):
    monkeypatch.setattr(install.platform, "system", lambda: "Darwin")
    assert install.main([]) == 0
    assert "skipped: no fbgemm build for this platform" in capsys.readouterr().out


def test_a_failure_is_a_warning_unless_strict(machine, monkeypatch, capsys):
    def pip(*arguments):
        raise install.InstallError("no network")

    monkeypatch.setattr(install, "pip", pip)
    assert install.main([]) == 0
    assert re.fullmatch(r"warning: torchrec was not installed: no network; .*\n", capsys.readouterr().err)
    assert install.main(["--strict"]) == 1


def test_another_torch_is_left_alone(machine):
    state, commands = machine
    state["torch"] = "2.14.0"
    with pytest.raises(install.InstallError, match=r"needs torch 2.13.0, found 2.14.0"):
        install.install()
    assert commands == []
