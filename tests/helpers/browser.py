"""Tab: a page of the dashboard in Chromium, with everything that the browser complains about.

Errors of the console (violations of the Content-Security-Policy are some), exceptions that no code
caught, dialogs of the browser, and answers of 5xx are kept in `complaints`; `Tab.check` wants none.
MARKUP is text that shows a dialog if anything takes it for HTML. `Tab.check_access` asks axe-core,
vendored in tests/browser/axe, for violations of WCAG 2.2 AA and of its best practices.
"""

import contextlib
import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Response, sync_playwright

from tests.helpers.live_broker import LiveBroker

REQUIRED_VARIABLE = "PENSTOCK_TEST_BROWSER"  # CI: a missing browser is a failure
CHROMIUMS = ("chromium", "google-chrome")
AXE = (Path(__file__).parent.parent / "browser" / "axe" / "axe.min.js").read_text(encoding="utf-8")
AXE_RUN = """async () => {
    const options = {resultTypes: ["violations"], runOnly: [
        "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]};
    const found = await axe.run(document, options);
    return found.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(
        n => n.html.slice(0, 200) + " " + n.failureSummary).join(" | "));
}"""
MARKUP = """<img/src=x/onerror=alert(1)>"'&{{x}}"""


def chromium() -> str:
    """Return the path of the Chromium that is installed; skip the test if there is none, or fail it
    where REQUIRED_VARIABLE is set."""
    for name in CHROMIUMS:
        if found := shutil.which(name):
            return found
    what = "chromium is not installed (Debian and Ubuntu: apt install chromium)"
    if os.environ.get(REQUIRED_VARIABLE):
        pytest.fail(what)
    pytest.skip(what)


@contextlib.contextmanager
def running_chromium() -> Iterator[Browser]:
    """A headless Chromium while the block runs."""
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page, in a context of its own: no cookies but those that it gets."""

    def __init__(self, browser: Browser, broker: LiveBroker, **context: Any) -> None:
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()  # parts of complaints that the test provokes
        self.context = browser.new_context(
            **{
                "base_url": f"http://{broker.host}:{broker.http_port}",
                "viewport": {"width": 1280, "height": 2400},  # nothing is covered by what is fixed
                **context,
            }
        )  # fmt: skip
        self.page: Page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error.stack}"))
        self.page.on("dialog", self._dialog)
        self.page.on("response", self._response)

    def sign_in(self, user: str) -> None:
        """Log in by the form; the password of a user is its name."""
        self.expected += ("401",)  # the first question is who is signed in
        self.page.goto("/")
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(user)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("button", name="sign out").wait_for()

    def go(self, *names: str, **params: str) -> None:
        """Show a page of the dashboard, and wait for its heading."""
        address = "/".join(quote(name, safe="") for name in names)
        self.page.goto(f"/#/{address}" + (f"?{urlencode(params)}" if params else ""))
        self.page.locator("main h1").wait_for()

    def check(self) -> None:
        """Assert that the browser complained about nothing that was not expected."""
        found = [one for one in self.complaints if not any(part in one for part in self.expected)]
        assert not found, found

    def check_access(self) -> None:
        """Assert that axe-core finds no violation on what is shown now."""
        self.page.evaluate(AXE)
        found = self.page.evaluate(AXE_RUN)
        assert not found, "\n".join(found)

    def close(self) -> None:
        """Close the page and forget its cookies."""
        self.context.close()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            where = message.location.get("url", "")
            self.complaints.append(f"console {message.type}: {message.text} {where}")

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog of the browser: {dialog.message}")
        dialog.dismiss()

    def _response(self, response: Response) -> None:
        if response.status >= 500:
            self.complaints.append(f"{response.status} {response.request.method} {response.url}")


class Load:
    """Publishes to queue `busy` and consumes from it, in a thread, while a with block runs. One
    message in ten goes to an exchange whose bindings do not match."""

    def __init__(self, broker: LiveBroker) -> None:
        self._broker = broker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        pika: Any = importlib.import_module("pika")
        parameters = pika.ConnectionParameters(
            self._broker.host, self._broker.port, client_properties={"connection_name": "load"}
        )
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.queue_declare("busy", durable=True)
            channel.basic_qos(prefetch_count=20)
            channel.basic_consume("busy", self._consumed, consumer_tag="worker")
            number = 0
            while not self._is_over.is_set():
                number += 1
                exchange = "" if number % 10 else "amq.topic"
                channel.basic_publish(exchange, "busy", b"message %d" % number)
                connection.process_data_events(0.02)

    @staticmethod
    def _consumed(channel: Any, method: Any, *_: object) -> None:
        channel.basic_ack(method.delivery_tag)
