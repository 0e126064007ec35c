"""Language-neutral reasons and formulas behind an answer."""
