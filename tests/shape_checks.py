"""The checker behind ``--enforce-shapes``: beartype, where an int is a float as PEP 484 says."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
