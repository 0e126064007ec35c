"""What a plan costs: memory, compute, communication and the step, as pure array functions."""
