"""A small language model: the user code of the example DAG, as an author would write it."""
