"""Traces of runs with planted faults: real plans, played kernel by kernel.

The cost model says how long each kernel and each collective of a plan takes, the schedule which
pass of which micro-batch a stage runs when. :mod:`planted.program` writes both down as what one
rank launches, :mod:`planted.play` plays all ranks against each other, :mod:`planted.faults` breaks
a run in a known way, and :mod:`planted.write` hands over what a profiler would have seen of it.
"""
