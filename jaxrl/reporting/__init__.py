"""What run folders say together: `jaxrl report`."""
