# Written by tools/unasync from _async/__init__.py: change that one.
