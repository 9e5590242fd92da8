"""What stands between `Agent` and a paper: shared settings, and parts that descend their losses."""
