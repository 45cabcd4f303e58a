"""Python scripts as a tool: `library.register(*python_executor_tools(engine=library.engine))`."""

from ferrule.tools.python_executor.box import python_executor_tools
from ferrule.tools.python_executor.config import PythonExecutorConfig

__all__ = ["PythonExecutorConfig", "python_executor_tools"]
