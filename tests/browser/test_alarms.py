"""The pages of alarms and of the log."""

from playwright.sync_api import expect

from tests.helpers.browser import MARKUP, Tab
from tests.helpers.live_broker import LiveBroker


def test_what_is_wrong_is_counted_until_it_is_silenced(admin: Tab, broker: LiveBroker) -> None:
    broker.control("declare_queue", "/", queue=f"alone {MARKUP}")
    broker.control("publish", "/", exchange="", routing_key=f"alone {MARKUP}", bodies=[b"1"] * 9)
    page = admin.page
    admin.go("alarms")
    badge = page.locator("nav.side .badge")
    line = page.locator("li", has_text=f"queue 'alone {MARKUP}': 9 messages and no consumer")
    line.get_by_role("button", name="Silence").wait_for()
    count = int(badge.inner_text())
    admin.check_access()
    line.get_by_role("button", name="Silence").click()
    line.get_by_text("silenced", exact=True).wait_for()
    broker.control("publish", "/", exchange="", routing_key=f"alone {MARKUP}", bodies=[b"1"])
    more = page.locator("li", has_text=f"queue 'alone {MARKUP}': 10 messages")
    more.get_by_text("silenced", exact=True).wait_for()  # it is the same one
    admin.check_access()
    if count > 1:
        expect(badge).to_have_text(str(count - 1))
    else:
        expect(badge).to_have_count(0)
    more.get_by_role("button", name="Not any more").click()
    expect(badge).to_have_text(str(count))
    broker.control("delete_queue", "/", queue=f"alone {MARKUP}")


def test_the_log_grows_and_is_filtered(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    admin.go("log")
    log = page.get_by_role("region", name="Lines of the log")
    log.get_by_text("vhost '/' serves").first.wait_for()
    page.get_by_label("text").fill("no line has these words")
    page.get_by_text("No such line").wait_for()
    broker.control("set_config", key="log_level", value="info")
    page.get_by_label("text").fill("LOG_LEVEL IS")
    log.get_by_text("log_level is info now, until the next start").first.wait_for()
    page.get_by_label("level").select_option("error")
    expect(log.get_by_text("log_level is info now")).to_have_count(0)
    admin.check_access()


def test_the_log_is_for_who_may_see_the_node(tab: Tab) -> None:
    tab.sign_in("ada")
    tab.go("log")
    tab.page.get_by_text("It needs the tag monitoring").wait_for()
