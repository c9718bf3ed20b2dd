"""What `--enforce-shapes` checks annotations with: beartype, where an int is a float (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
