"""Tasks to train on: the embedded Geo questions, and the ARPO authors' data."""

from .datasets import check_answers, load_arpo
from .geo import TINY_GEO, geo_documents, geo_tools, load_geo
from .script import TaskArguments, load_task, model_init_kwargs

__all__ = [
    "TINY_GEO",
    "TaskArguments",
    "check_answers",
    "geo_documents",
    "geo_tools",
    "load_arpo",
    "load_geo",
    "load_task",
    "model_init_kwargs",
]
