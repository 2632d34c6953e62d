"""An environment for each peer, made from its requirements: `.venv-peers/NAME` from `requirements/NAME.txt`.

A stamp in the environment contains its requirements and is written last. So an environment is made again if it was
interrupted, or if its requirements have changed. uv makes it if it is installed, otherwise venv and pip do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.process import ROOT

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
ENVIRONMENTS = ROOT / ".venv-peers"

INSTALL_TIMEOUT = 1_200.0


class UnavailableError(Exception):
    """An environment could not be made. The message says why in a line."""


def python_of(name: str, directory: Path = ENVIRONMENTS, requirements: Path | None = None) -> Path:
    """The Python of an environment, which is made if it does not exist or is outdated.

    Raises:
        UnavailableError: it could not be made.
    """
    wanted_file = (requirements or REQUIREMENTS) / f"{name}.txt"
    environment = directory / name
    python = environment / "bin" / "python"
    stamp = environment / "stamp"
    wanted = f"{sys.version}\n{environment}\n{wanted_file.read_text(encoding='utf-8')}"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Making an environment for {name}", file=sys.stderr)
    shutil.rmtree(environment, ignore_errors=True)
    for command in commands(environment, wanted_file, shutil.which("uv")):
        _run(command)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def commands(environment: Path, requirements: Path, uv: str | None) -> list[list[str]]:
    """The two that make an environment and fill it."""
    python = str(environment / "bin" / "python")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(environment)]
        return [make, [uv, "pip", "install", "--quiet", "--python", python, "--requirement", str(requirements)]]
    make = [sys.executable, "-m", "venv", str(environment)]
    return [make, [python, "-m", "pip", "install", "--quiet", "--no-input", "--requirement", str(requirements)]]


def _run(command: list[str]) -> None:
    try:
        environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            command, env=environment, timeout=INSTALL_TIMEOUT, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"installing took more than {INSTALL_TIMEOUT:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise UnavailableError(next((line for line in errors if line.startswith("ERROR:")), errors[-1]))
