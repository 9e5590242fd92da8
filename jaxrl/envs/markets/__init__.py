"""Markets: prices that follow a given process, and an account that pays for its trades."""
