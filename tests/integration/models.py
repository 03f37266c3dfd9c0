"""The zoo of examples/real_models.py; a model whose library is not here is skipped."""

from __future__ import annotations

import pytest
import real_models
from real_models import BUILDERS, Entry

__all__ = ["BUILDERS", "build"]


def build(name: str) -> Entry:
    """A fresh model in eval mode, no forward run yet, and what draws its inputs."""
    try:
        return real_models.build(name)
    except ImportError as error:
        pytest.skip(f"{name}: {error}")
