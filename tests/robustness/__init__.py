"""Hostile and broken clients against a live broker: bounded memory, bounded time, never silence."""
