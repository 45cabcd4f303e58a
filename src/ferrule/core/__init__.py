"""The values every other package uses: tools, calls, content, messages, events, names and schemas."""
