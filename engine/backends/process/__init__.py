"""The base of backends whose engine runs in a process of its own, on a suite's models or on converted ones.

`backend`: the models and the engines. `arm`: one arm. `driver`: the engine's side. `engine_process`: start, death and
restarts. `settings`, `record`, `convert`: settings and evidence, answers as records, converted models.
"""
