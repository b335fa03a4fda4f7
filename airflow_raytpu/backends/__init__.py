"""The only input and output on Airflow's side: a backend carries requests to where they run and looks at them there."""
