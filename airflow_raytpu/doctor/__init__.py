"""``airflow-raytpu doctor``: whether the place that a connection names has what a request needs, and what to do."""
