"""A word-problem agent: a solver that may use a calculator, looping until it answers.

This is an ordinary LangGraph program. It knows nothing of training.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph

MAX_TURNS = 3
INSTRUCTIONS = "First write calc: and one expression. When you are told the result, write answer: and the number."
EXAMPLES: list[AnyMessage] = [
    HumanMessage("Ann has 40 pens and gives away 14. How many pens are left?"),
    AIMessage("calc: 40-14"),
    HumanMessage("result: 26"),
    AIMessage("answer: 26"),
    HumanMessage("There are 9 boxes with 6 eggs each and 4 more eggs. How many eggs are there?"),
    AIMessage("calc: 9*6+4"),
    HumanMessage("result: 58"),
    AIMessage("answer: 58"),
]
STOP = ["\n", "="]  # one line is wanted, and small models like to go on with the result

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class State(TypedDict):
    question: str
    messages: Annotated[list[AnyMessage], add_messages]


def calculate(expression: str) -> str:
    """The value of an arithmetic expression as text; `error` if it is none."""
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return "error"
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) < 1e9:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("not arithmetic")


def calculation(text: str) -> str | None:
    """The expression of a `calc:` line, if there is one."""
    found = re.search(r"calc:([^\n=]*)", text)
    return found.group(1).strip() if found else None


def answer(text: str) -> str | None:
    """The number of an `answer:` line, if there is one."""
    found = re.search(r"answer:\s*(-?\d+(?:\.\d+)?)\s*$", text.strip())
    return found.group(1) if found else None


def build() -> CompiledStateGraph:
    model = ChatOpenAI(model="gpt-4.1-mini", temperature=0, max_retries=2, stop_sequences=STOP)

    def solver(state: State) -> dict[str, Any]:
        question: list[AnyMessage] = [] if state.get("messages") else [HumanMessage(state["question"])]
        history = [*state.get("messages", []), *question]
        reply = model.invoke([SystemMessage(INSTRUCTIONS), *EXAMPLES, *history])
        return {"messages": [*question, reply]}

    def calculator(state: State) -> dict[str, Any]:
        expression = calculation(str(state["messages"][-1].content)) or ""
        return {"messages": [HumanMessage(f"result: {calculate(expression)}")]}

    def route(state: State) -> str:
        turns = sum(isinstance(message, AIMessage) for message in state["messages"])
        wants_calculator = calculation(str(state["messages"][-1].content)) is not None
        return "calculator" if wants_calculator and turns < MAX_TURNS else END

    graph = StateGraph(State)
    graph.add_node("solver", solver)
    graph.add_node("calculator", calculator)
    graph.add_edge(START, "solver")
    graph.add_conditional_edges("solver", route, ["calculator", END])
    graph.add_edge("calculator", "solver")
    return graph.compile()
