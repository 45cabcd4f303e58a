"""HTTP requests that go only to permitted addresses."""
