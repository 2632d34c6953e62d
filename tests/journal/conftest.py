"""A journal's place on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncio_operator.journal.storage import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path))
