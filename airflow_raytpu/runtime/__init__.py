"""Runs inside the Ray cluster, where neither Airflow nor this package is installed: it comes with the author's code.

``python -m airflow_raytpu.runtime <URI of a request>`` is a Ray job's driver. The driver never imports JAX: it may sit
on a host without TPUs, or beside one whose TPUs belong to a worker.
"""
