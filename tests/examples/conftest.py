"""The PostgreSQL that these tests share."""

from __future__ import annotations

from tests.services import postgres

__all__ = ["postgres"]
