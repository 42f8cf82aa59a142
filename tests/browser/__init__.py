"""The dashboard in Chromium, driven by Playwright, on one live broker under load."""
