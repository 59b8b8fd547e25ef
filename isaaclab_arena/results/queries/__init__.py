"""What a job's row says of the queries that its policy was asked."""
