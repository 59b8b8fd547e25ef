"""Keep the claims of a run on a cluster, commit what its ranks deliver, and judge over what ranks have died."""
