"""Real clients and raw frames against a live broker: ours, or the one of PENSTOCK_TEST_URL."""
