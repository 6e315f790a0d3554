"""Below the device tier: rows, the memory that holds their records, and the disk under it."""
