"""``airflow-raytpu reap``: the end of what nobody looks after any more, from a terminal."""
