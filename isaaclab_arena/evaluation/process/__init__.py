"""What a process does about signals and about steps that hang."""
