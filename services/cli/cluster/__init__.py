"""The processes of one `baton up`: planned, started, watched, stopped."""
