"""`make screenshots`: draws the pictures of the dashboard in docs/guides.

A queue is looked at while a backlog comes to it and goes to disk, beside some load, and for
SAMPLES_S, so that the charts have something to show. WORDS keeps the headings and links that the
pictures show: test_pictures.py compares them with those of today.
"""

import json
import re
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Locator, Page

from tests.helpers.browser import Load, Tab, running_chromium
from tests.helpers.live_broker import LiveBroker

DOCS = Path("docs/guides")
WORDS = Path("tests/browser/pictures.json")
PICTURES = {"queue": ("queues", "/", "orders"), "overview": ("overview",)}
SAMPLES_S = 60
MESSAGES = {"orders": 80_000, "invoices": 3000, "emails": 20}
BATCH = 1000
SIZE = {"width": 1280, "height": 860}


def words(page: Page) -> Locator:
    """The navigation, the headings and the parts of the page that is shown."""
    return page.locator("nav.side a, main h2, nav.tabs a")


def declare(broker: LiveBroker) -> None:
    """Queues as a shop may have them."""
    for queue in MESSAGES:
        broker.control("declare_queue", "/", queue=queue)


def publish(broker: LiveBroker) -> None:
    """Messages, most of which `orders` has on disk."""
    for queue, count in MESSAGES.items():
        for _ in range(0, count, BATCH):
            bodies = ["x" * 1000] * min(count, BATCH)
            broker.control(
                "publish", "/", routing_key=queue, bodies=bodies, properties={"delivery_mode": 2}
            )


def main() -> None:
    shown: dict[str, list[str]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        running_chromium() as browser,
        LiveBroker(
            Path(directory) / "data", has_http=True, environment={"PENSTOCK_MEMORY": "16MiB"}
        ) as broker,
        Load(broker),
    ):
        tab = Tab(browser, broker, viewport=SIZE)
        tab.sign_in("guest")
        declare(broker)
        for name, names in PICTURES.items():
            tab.go(*names)
            if name == "queue":  # of which there are samples while somebody looks
                publish(broker)
                time.sleep(SAMPLES_S)
            tab.page.wait_for_timeout(3000)  # the charts have their samples
            found = words(tab.page).all_inner_texts()
            shown[name] = [re.sub(r"\s+\d+$", "", text) for text in found]  # without counts
            tab.page.screenshot(path=DOCS / f"dashboard-{name}.png")
        tab.close()
    WORDS.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
