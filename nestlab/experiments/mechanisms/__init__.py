"""The mechanisms on data small enough to read: three batches over eight ids, driven through the real parts."""
