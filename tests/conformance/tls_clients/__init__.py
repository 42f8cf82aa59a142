"""Small programs with the clients of other languages, which connect over TLS."""
