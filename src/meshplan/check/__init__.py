"""Configs that people already have: what they say, whether it is legal, and what is off."""
