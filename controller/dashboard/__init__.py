"""The status page: one plain HTML document, no scripts, no assets from anywhere else."""
