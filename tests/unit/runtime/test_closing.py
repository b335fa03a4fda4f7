"""The last line of a job's log."""

from airflow_raytpu.model.goodput import Goodput
from airflow_raytpu.runtime.closing import closing


def test_a_training_says_what_it_came_to_and_what_it_cost():
    goodput = Goodput(useful_s=91, compile_s=4, redone_s=3, saving_s=2, waiting_s=50).to_result()
    value = {
        "step": 2000,
        "metrics": {"loss": 0.18},
        "checkpoint": "file:///c/2000",
        "best_step": 1800,
        "evictions": 1,
        "failures": 0,
        "chip_hours": 3.4,
        "goodput": goodput,
    }
    assert closing(value) == (
        "done: step 2,000, loss 0.18, best 1,800; 1 eviction, 0 failures; "
        "3.4 chip-hours, 91 % useful (compile 4 %, saving 2 %, redone 3 %)"
    )
    value |= {"metrics": {}, "best_step": None, "evictions": 2, "failures": 1, "chip_hours": 0.0025}
    assert closing(value).startswith("done: step 2,000; 2 evictions, 1 failure; 0.0025 chip-hours, 91 %")


def test_whatever_else_a_job_returns_is_listed():
    assert closing({"rows": 3, "parts": 1}) == "done: rows 3, parts 1"
