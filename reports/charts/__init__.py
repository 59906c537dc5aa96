"""A Report as plotly figures: pure functions, drawn alike in the HTML file and on the Streamlit page.

Figures have no title and no legend (the page around them has; `legend_html` writes the latter) and a transparent
background (the page may be light or dark).
"""

from reports.charts.buckets import bucket_timeline
from reports.charts.communication import communication_fit
from reports.charts.legend import legend_html
from reports.charts.step_time import step_time_bar
from reports.charts.sweep import prediction_vs_measurement
from reports.charts.waterfall import step_waterfall

__all__ = [
    "bucket_timeline",
    "communication_fit",
    "legend_html",
    "prediction_vs_measurement",
    "step_time_bar",
    "step_waterfall",
]
