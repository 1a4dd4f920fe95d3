"""Says above the table what was measured on, since only ratios carry over to another machine."""

from machine import describe


def pytest_report_header() -> str:
    return describe()
