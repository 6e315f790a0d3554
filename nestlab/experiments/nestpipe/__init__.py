"""NestPipe, measured: what two pipelines hide, move and change, on ranks of this machine. Notebook `10_nestpipe`."""
