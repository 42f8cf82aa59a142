"""The command line with real processes: what a user sees of a broker from a shell."""
