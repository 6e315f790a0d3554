"""What a model of users' histories learns under each technique, in ranking metrics: notebook 12."""
