"""From an Airflow connection to the place where requests run."""
