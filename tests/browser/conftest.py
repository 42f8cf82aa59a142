"""One broker under load and one Chromium for all tests of the dashboard.

No longer than for these: Playwright has an event loop in this thread, and other tests have theirs.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.helpers.browser import MARKUP, Load, Tab, running_chromium
from tests.helpers.live_broker import LiveBroker


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def broker(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Under load, with names that are markup; not started without a browser."""
    data = tmp_path_factory.mktemp("browser") / "data"
    with LiveBroker(data, has_http=True) as broker:
        broker.control("declare_queue", "/", queue=MARKUP, arguments={"x-max-length": 5})
        broker.control("declare_exchange", "/", exchange=MARKUP, type="topic")
        broker.control("bind_queue", "/", queue=MARKUP, exchange=MARKUP, routing_key=MARKUP)
        broker.control(
            "publish", "/", exchange=MARKUP, routing_key=MARKUP, bodies=[MARKUP.encode()],
            properties={"headers": {MARKUP: MARKUP}, "content_type": "text/html"},
        )  # fmt: skip
        broker.control("add_user", name=MARKUP, password="x", tags=[MARKUP])
        broker.control("add_vhost", name=MARKUP, description=MARKUP, tags=[MARKUP])
        definition = {"max-length": 5}
        for op in ("set_policy", "set_operator_policy"):
            broker.control(op, "/", name=MARKUP, pattern="^<img", definition=definition)
        for user, tag in (("ada", "management"), ("pol", "policymaker"), ("mon", "monitoring")):
            broker.control("add_user", name=user, password=user, tags=[tag])
            broker.control("set_permissions", "/", user=user, configure="^a", write="", read=".*")
        with Load(broker):
            yield broker


@pytest.fixture
def tab(browser: Browser, broker: LiveBroker) -> Iterator[Tab]:
    """A tab of nobody's; what the browser complains about fails the test at its end."""
    tab = Tab(browser, broker)
    yield tab
    tab.close()
    tab.check()


@pytest.fixture
def admin(tab: Tab) -> Tab:
    """The tab of guest, an administrator."""
    tab.sign_in("guest")
    return tab
