"""Ranking: the objective, the search over the legal grid, and what would flip the choice."""
