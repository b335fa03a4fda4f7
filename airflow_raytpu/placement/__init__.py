"""Where it fits: TPU shapes, and what a request needs of them. Pure; imports the model alone."""
