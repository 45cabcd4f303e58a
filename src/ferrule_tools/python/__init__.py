"""Python scripts as a tool: `library.register(*python_executor_tools(engine=library.engine))`."""

from ferrule_tools.python.config import PythonExecutorConfig
from ferrule_tools.python.executor import python_executor_tools

__all__ = ["PythonExecutorConfig", "python_executor_tools"]
