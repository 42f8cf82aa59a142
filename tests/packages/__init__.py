"""What users install, installed: `make packages` runs check_*.py, which take minutes and PyPI.

The packages are those of dist/, or of the directory that PENSTOCK_DIST names.
"""
