"""How each kind of tool is really run: functions, commands, HTTP requests and what comes in the box."""
