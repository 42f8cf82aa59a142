"""One broker under load and one Chromium for all tests of the dashboard.

No longer than for these: Playwright has an event loop in this thread, and other tests have theirs.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.helpers.browser import Load, Tab, running_chromium
from tests.helpers.live_broker import LiveBroker


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def broker(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Under load; not started without a browser."""
    data = tmp_path_factory.mktemp("browser") / "data"
    with LiveBroker(data, has_http=True) as broker, Load(broker):
        yield broker


@pytest.fixture
def tab(browser: Browser, broker: LiveBroker) -> Iterator[Tab]:
    """A tab of nobody's; what the browser complains about fails the test at its end."""
    tab = Tab(browser, broker)
    yield tab
    tab.close()
    tab.check()
