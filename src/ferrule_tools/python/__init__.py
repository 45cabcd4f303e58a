"""Python scripts as a tool: `library.register(*python_executor_tools(engine=library.engine))`."""

from ferrule_tools.python.executor import python_executor_tools
from ferrule_tools.python.script import PythonExecutorConfig

__all__ = ["PythonExecutorConfig", "python_executor_tools"]
