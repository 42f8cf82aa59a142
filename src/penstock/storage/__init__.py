"""Storage: all files that Penstock keeps beyond the life of a process.

It knows no AMQP, no asyncio and no queue's policy. `engine` is what others open; it hands out what
is in `parts`. Below it, from the lowest: `files` (its `filesystem` alone calls the operating system
about files, so that all others run on a simulated disk in tests), `log`, `index` and `store`,
`pages`, and `journal`, which says what each record of the log means. `upkeep` runs beside the
traffic. `tools` work on a directory while no process serves it.
"""
