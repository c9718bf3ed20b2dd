"""The command line: parsing and printing only; the work is done by the rooms below."""
