"""The README's page on frameworks says what these tests have seen."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from frameworks.table import ROWS, markdown

HERE = Path(__file__).parent
README = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_exactly_this_table() -> None:
    tables = re.findall(r"^\| framework \|.*\n(?:\|.*\n)+", README, flags=re.MULTILINE)
    assert tables == [markdown()], "print it anew: python tests/frameworks/table.py"


def test_the_readme_has_exactly_the_adapter_that_is_tested() -> None:
    assert f"```py\n{(HERE / 'grain_adapter.py').read_text(encoding='utf-8')}```\n" in README


@pytest.mark.parametrize("row", ROWS, ids=[row.framework for row in ROWS])
def test_a_row_has_its_tests_and_no_version_that_they_have_not_seen(row: tuple[str, ...]) -> None:
    _, package, tested, *_, tests = row
    module = {"pytorch-ignite": "ignite", "mosaicml": "composer"}.get(package, package)
    assert re.search(rf"\b{module}\b", (HERE / tests).read_text(encoding="utf-8"), flags=re.IGNORECASE)
    if tested == "not run":
        return
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    # A newer one is fine, and the header of the report names it: write it down when the tests have passed.
    assert numbers(installed) >= numbers(tested), f"the README says {package} {tested}, but this is {installed}"


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)[:3]]
