"""Which frameworks these tests run over: those that are installed. The others' are skipped, and say so."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from frameworks.table import ROWS

collect_ignore = [] if importlib.util.find_spec("grain") else ["grain_adapter.py"]


def pytest_report_header() -> str:
    found = []
    for package in dict.fromkeys(row.package for row in ROWS):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return "frameworks: " + ", ".join(found)
