"""What users of Isaac Lab Arena write, in files and on command lines, told in this project's own keys and options."""
