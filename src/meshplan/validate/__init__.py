"""Predicted against measured: rows, metrics and calibration."""
