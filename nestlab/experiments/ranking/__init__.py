"""Ranking models on KuaiRand's rows: which predicts best, action by action, and what each technique changes of it."""
