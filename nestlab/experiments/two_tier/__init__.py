"""Two-tier tables: JD Retail's parameter server and RecSDK's multi-level cache, one module a question."""
