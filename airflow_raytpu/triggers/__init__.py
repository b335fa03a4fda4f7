"""The watch over a running request, in the triggerer or on the worker."""
