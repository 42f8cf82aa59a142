"""The pictures of the dashboard in the documentation show what it is today."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.pictures import DOCS, PICTURES, WORDS, words
from tests.helpers.browser import Tab
from tests.helpers.live_broker import LiveBroker


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_the_headings_of_today(admin: Tab, broker: LiveBroker, name: str) -> None:
    broker.control("declare_queue", "/", queue="orders")
    admin.go(*PICTURES[name])
    picture = DOCS / f"dashboard-{name}.png"
    assert picture.stat().st_size > 10_000
    drawn = [re.compile(re.escape(word)) for word in json.loads(WORDS.read_text())[name]]
    older = f"{picture} is of an older dashboard: make screenshots"
    expect(words(admin.page), older).to_have_text(drawn)
