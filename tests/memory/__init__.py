"""Memory: backlogs in a real process on a real disk, and what the process occupies meanwhile."""
