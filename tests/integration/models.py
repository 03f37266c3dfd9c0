"""The zoo of examples/real_models.py and examples/pipe_models.py; a model whose library is not here is skipped."""

from __future__ import annotations

import pipe_models
import pytest
import real_models
from pipe_models import PIPED
from real_models import BUILDERS, Entry

__all__ = ["BUILDERS", "PIPED", "build", "build_piped"]


def build(name: str) -> Entry:
    """A fresh model in eval mode, no forward run yet, and what draws its inputs."""
    try:
        return real_models.build(name)
    except ImportError as error:
        pytest.skip(f"{name}: {error}")


def build_piped(name: str) -> Entry:
    """The same for the models of pipelines."""
    try:
        return pipe_models.build(name)
    except ImportError as error:
        pytest.skip(f"{name}: {error}")
