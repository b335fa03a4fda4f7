"""``airflow-raytpu explain``: what each task of a DAG would ask for, without asking anybody."""
