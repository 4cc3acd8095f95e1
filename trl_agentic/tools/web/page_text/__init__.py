"""
The readable text of a page, in a process of its own.

What is parsed here was written by anybody, and the parsers are libraries in C: a page can keep them busy for ever,
fill the memory, or end the process. `page_parser.py` starts that process (`process.py`)
and kills it. Nothing here imports the rest of the package, whose imports would make it slow to start.
"""
