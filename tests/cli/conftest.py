from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Most of these tests start several programs one after the other: on a busy machine that takes a while."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(240))
