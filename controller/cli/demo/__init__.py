"""`akc demo`: the whole loop on one machine, as one process group, watched live and then measured.

`processes` starts and stops the parts, `table` draws the live view, `trial` runs blocks of requests under one arm,
`verdict` turns blocks into paired ratios with intervals, `run` puts them in order.
"""
