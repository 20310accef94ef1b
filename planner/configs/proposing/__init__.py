"""What other settings, placements and frameworks would bring: changes of a configuration, judged as they are typed."""
