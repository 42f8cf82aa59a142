"""COLUMNS: of each list, the columns that are shown and the others, as the table of operations has
them."""

from penstock.operation_table import OPERATIONS

COLUMNS = {
    row.name: (row.shown, tuple(name for name in row.answer if name not in row.shown))
    for row in OPERATIONS.values()
    if row.shown
}
