"""The commands of `jaxrl`, a file each with a function `main(argv)`."""
