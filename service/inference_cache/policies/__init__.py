"""The policies that a server uses: kept in step with the snapshot in Redis, which all servers share."""
