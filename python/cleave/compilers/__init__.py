"""Compilers of segments, each a program of its own: `python -m cleave.compilers.inductor FOLDER`.

A folder holds one job (segment.clv, job.json); the compiler leaves result.json and the files it made next to it, or
error.json. Compilers crash, hang, and keep gigabytes: in a process of their own that costs one segment."""
