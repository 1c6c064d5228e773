"""What a running project is besides its loop: its lock, its end, what it says of itself."""
