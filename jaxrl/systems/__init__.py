"""Published algorithms on the kit, one file each."""
