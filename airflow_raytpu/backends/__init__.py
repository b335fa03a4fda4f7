"""The only input and output on Airflow's side: each backend carries requests to the place they run and looks at them there."""
