"""The main job on real input: `sa-jobqueue demo` indexes a code base while one of its workers is killed.

`tasks` is meant to be read and copied: models, handlers and producer of a small application, by the public API alone.
`run` conducts the demo, `report` judges it.
"""
