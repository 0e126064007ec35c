"""What the user gives: the model, the cluster, the job, and the scenario that joins them."""
