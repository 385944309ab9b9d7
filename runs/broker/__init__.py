"""The broker: SAQ behind a facade. The only place that imports saq."""
