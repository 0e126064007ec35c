"""The local web app: a small server over :mod:`meshplan.app.service`, and what it serves."""
