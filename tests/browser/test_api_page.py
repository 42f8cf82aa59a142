"""The page that lists the HTTP API, in a browser."""

import pytest

from tests.helpers.browser import MARKUP, Tab

pytestmark = pytest.mark.real


def test_the_list_of_the_api_is_readable_by_everybody(tab: Tab) -> None:
    tab.page.goto("/api/index.html")
    assert tab.page.get_by_role("heading", level=1).count() == 1
    tab.check_access()


def test_a_page_that_takes_text_for_markup_is_noticed(tab: Tab) -> None:
    tab.page.goto("/api/index.html")
    with tab.page.expect_event("console"):
        tab.page.evaluate("text => { document.body.innerHTML = text; }", MARKUP)
    with pytest.raises(AssertionError, match="violates the following Content Security Policy"):
        tab.check()
    tab.complaints.clear()
