"""Results as tests compare them."""

VOLATILE = ("elapsed_s", "evaluations_per_s")
"""Fields of ``searched``: the only values that differ between two runs of one request."""
