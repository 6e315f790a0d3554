"""One mechanism of each kind that NestLab takes from outside: what docs/extend.md explains."""
