"""What people write in `sidecar.toml`: names, values, secrets."""
