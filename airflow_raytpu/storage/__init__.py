"""Files in storage on Airflow's side, on disk or in Google Cloud Storage: staged code, requests and results."""
