"""Why a run is slow: what its traces and logs say, and which plan would be faster."""
