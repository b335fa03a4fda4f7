"""Airflow's task decorators of this package, found through the provider's description: ``@task.ray_tpu`` and others."""
