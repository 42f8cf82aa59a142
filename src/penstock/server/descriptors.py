"""Descriptors: how many files and sockets a process may open (ulimit -n), and what they are for.

A vhost that cannot open the next segment of its log can confirm nothing, so clients may not use up
the descriptors of its process. Each process has the same limit, and divides it:

    a vhost         OWN | files: a quarter, FILES_MOST at most | its clients
    the supervisor  SUPERVISOR | clients: half that log in, a quarter that are refused, a quarter
                    that wait for their vhost
    HTTP            OWN | half the rest are connections, and each may read a file; links to vhosts

The supervisor counts the clients that it hands over, and refuses those beyond the share of clients
at connection.open with 506. If a vhost has more files open than its share, fewer clients are
admitted; RESERVE descriptors are kept open for its files in any case (storage.filesystem).
"""

import resource
from typing import Final

from penstock.access.limits import Limits

OWN: Final = 48  # the loop, the links to the supervisor and to HTTP, the log, workers, Python's
SUPERVISOR: Final = 128  # links, control connections, users, starting a process
FILES_SHARE: Final = 4
FILES_MOST: Final = 640  # what a vhost with many queues and streams keeps open
RESERVE: Final = 16
USER_PERCENT: Final = 75  # of the clients of a vhost may be of one user, by default
MOST: Final = 1 << 20  # where the hard limit is infinite; Linux allows no more


def raise_limit() -> int:
    """Raise this process's limit of open files to the hard one. Returns what it is now."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if most == resource.RLIM_INFINITY else most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (OSError, ValueError):
        return limit
    return wanted


def files_of(nofile: int) -> int:
    """Return the share of a vhost's files."""
    return min(FILES_MOST, nofile // FILES_SHARE)


def clients_max(nofile: int, open_files: int = 0) -> int:
    """Return how many clients a vhost takes while so many of its files are open."""
    return max(nofile - OWN - max(files_of(nofile), open_files + RESERVE), 0)


def http_connections_max(nofile: int) -> int:
    """Return how many connections the HTTP process takes."""
    return max((nofile - OWN) // 2, 1)


def supervisor_sockets(nofile: int) -> int:
    """Return how many clients the supervisor may have."""
    return max(nofile - SUPERVISOR, 4)


def default_limits(nofile: int) -> Limits:
    """Return the defaults of [limits]."""
    plain = Limits()
    most = clients_max(nofile)
    of_user = min(plain.user_connections, most * USER_PERCENT // 100)
    return Limits(vhost_connections=most, user_connections=of_user)
