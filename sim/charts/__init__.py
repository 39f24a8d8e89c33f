"""Charts: what they show is a value; pages draw it as SVG, and files are drawn by matplotlib.

    chart       the values: curves with their range, distributions over devices, pairs of devices
    svg         the same as SVG for pages, coloured by the page's style sheet (charts.css)
    runs        curves and figures of runs
    files       figures as PNG, SVG and PDF, by matplotlib

Pages do not load matplotlib. It took 0.8 s of CPU to load and 0.05 to 0.12 s for each chart, and a
page that is watched is drawn every two seconds. What it draws also has no place on a page whose
policy forbids styles of single elements.
"""
