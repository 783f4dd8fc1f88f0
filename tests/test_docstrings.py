"""The examples in the docstrings run, and give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

# lightning's run with its own tests; the others' need an accelerator or a trainer
MODULES = ["order", "samplers", "batching", "loaders"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_a_modules_docstrings_are_right(name: str) -> None:
    module = importlib.import_module(f"rankless_sampler.{name}")
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 0
