"""``airflow-raytpu demo``: a real Airflow and simulated TPU slices on this machine, for one look at the main job."""
