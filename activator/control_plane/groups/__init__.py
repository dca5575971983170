"""Groups: revisions that share what a machine has; whose programs are loaded, who has to leave, whose turn it is."""
