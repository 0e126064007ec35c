"""Which plans are legal: the plan record, the rules, the enumeration and the placement."""
