"""What AWS answers, as data with its source, and whoever holds a server against it."""
