"""The theory of RoPE as functions: forms, general solution, losslessness, decay, base, precision.

``docs/theory`` derives every statement beside the function that computes it.
"""

from rotary.theory.base import base_for_length, first_negative_distance, is_base_sufficient
from rotary.theory.canonical import CanonicalForm, canonical_form, generators_of
from rotary.theory.counterexamples import (
    flattened,
    quaternion_encoding,
    quaternion_exponential,
    quaternion_matrix,
    quaternion_product,
    random_generators,
    summed,
)
from rotary.theory.decay import (
    abel_bound,
    decay,
    final_sum,
    mean_cosine,
    partial_sums,
    score,
)
from rotary.theory.explanation import Explanation, PlaneGroup, explain
from rotary.theory.forms import (
    complex_form,
    elementwise_form,
    expanded_score,
    half_split_form,
    matrix_form,
    to_complex,
)
from rotary.theory.generators import (
    Encoding,
    centraliser,
    commutator_norm,
    exponential,
    matrix_exponential,
    orthogonal_power,
    skew,
    skew_logarithm,
)
from rotary.theory.linear import cosformer_features, decaying_generator, relative_pair
from rotary.theory.precision import RECIPES, AngleError, angle_error, exact_frequencies
from rotary.theory.relativity import (
    code_distance,
    is_lossless,
    is_relative,
    margin,
    rank,
    relativity_error,
)
from rotary.theory.resolution import (
    Alias,
    TableError,
    closest_alias,
    distinct_codes,
    exact_integers,
    incomplete_planes,
    resolution,
    table_error,
    wavelengths,
)

__all__ = [
    "RECIPES",
    "Alias",
    "AngleError",
    "CanonicalForm",
    "Encoding",
    "Explanation",
    "PlaneGroup",
    "TableError",
    "abel_bound",
    "angle_error",
    "base_for_length",
    "canonical_form",
    "centraliser",
    "closest_alias",
    "code_distance",
    "commutator_norm",
    "complex_form",
    "cosformer_features",
    "decay",
    "decaying_generator",
    "distinct_codes",
    "elementwise_form",
    "exact_frequencies",
    "exact_integers",
    "expanded_score",
    "explain",
    "exponential",
    "final_sum",
    "first_negative_distance",
    "flattened",
    "generators_of",
    "half_split_form",
    "incomplete_planes",
    "is_base_sufficient",
    "is_lossless",
    "is_relative",
    "margin",
    "matrix_exponential",
    "matrix_form",
    "mean_cosine",
    "orthogonal_power",
    "partial_sums",
    "quaternion_encoding",
    "quaternion_exponential",
    "quaternion_matrix",
    "quaternion_product",
    "random_generators",
    "rank",
    "relative_pair",
    "relativity_error",
    "resolution",
    "score",
    "skew",
    "skew_logarithm",
    "summed",
    "table_error",
    "to_complex",
    "wavelengths",
]
