"""Bodies in a vertical or horizontal plane, built on two small kits of rigid-body dynamics."""
