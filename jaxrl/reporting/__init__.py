"""Reports on several runs: `jaxrl report`."""
