"""``airflow-raytpu slices``: the live picture of clusters' slices, in a terminal."""
