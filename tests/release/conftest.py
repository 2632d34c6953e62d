"""Wheels and sdists, built once for all tests of a process, and environments that know what a user's would."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., str]


def project(folder: Path = ROOT) -> dict[str, Any]:
    """What the pyproject.toml of a folder says of its project."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return found


class Built(NamedTuple):
    """The files that a release consists of."""

    wheel: Path
    sdist: Path
    proof: Path
    proof_sdist: Path


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """What hatchling makes of a source tree; nothing is installed or downloaded."""
    chosen = [part for kind in kinds for part in ("-t", kind)]
    run([sys.executable, "-m", "hatchling", "build", *chosen, "-d", str(target)], source)
    return sorted(target.iterdir(), key=lambda path: path.suffix)


def run(command: list[str], cwd: Path) -> str:
    """What a command prints to its standard output; it must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What `make dist` makes."""
    sdist, wheel = build(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")
    proof_sdist, proof = build(ROOT / "proof", tmp_path_factory.mktemp("proof"), "sdist", "wheel")
    return Built(wheel, sdist, proof, proof_sdist)


def environment(directory: Path, wheels: Iterable[Path], beside: Iterable[Path] = ()) -> Path:
    """The Python of a new environment with wheels in it, and whatever lies in other folders."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python), "install"]
    run([*pip, "--no-deps", "--no-index", "--no-compile", *map(str, wheels)], directory)
    packages = Path(
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], directory).strip()
    )
    (packages / "beside.pth").write_text("".join(f"{path}\n" for path in beside))
    return python


@pytest.fixture(scope="session")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel of the library and nothing else."""
    return environment(tmp_path_factory.mktemp("bare"), [built.wheel])


@pytest.fixture(scope="session")
def furnished(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with both wheels and all that the tests have, but for this repository."""
    return environment(
        tmp_path_factory.mktemp("furnished"),
        [built.wheel, built.proof],
        {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")},
    )
