"""Lets the tests here import the golden numbers and the NumPy reference beside them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
