"""What a configuration says: files, scripts and command lines as values by key, and what the keys mean."""
