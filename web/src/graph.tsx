/** A plan as a graph with the state of each step. */

import { graphlib, layout } from "@dagrejs/dagre";
import { useMemo } from "react";
import type { Plan, StepResult } from "./api";
import { t } from "./language";
import { oneLine, visible } from "./text";

const WIDTH = 210;
const HEIGHT = 58;

type NodeState = "pending" | "running" | "finished" | "failed" | "skipped";

/** What is known of each step: its result, or whether it can be running now. */
export function stepStates(plan: Plan, results: StepResult[], isRunning: boolean): Map<string, NodeState> {
  const ended = new Map(results.map((result) => [String(result.step_id), result]));
  const states = new Map<string, NodeState>();
  for (const step of plan.steps) {
    const result = ended.get(String(step.id));
    if (result !== undefined) states.set(String(step.id), result.skipped ? "skipped" : result.success ? "finished" : "failed");
    else states.set(String(step.id), isRunning && step.dependencies.every((id) => ended.has(String(id))) ? "running" : "pending");
  }
  return states;
}

export function PlanGraph({ plan, results, isRunning }: { plan: Plan; results: StepResult[]; isRunning: boolean }) {
  const drawn = useMemo(() => arrange(plan), [plan]);
  const states = stepStates(plan, results, isRunning);
  return (
    <div className="graph" tabIndex={0} role="group" aria-label={t("plan")}>
      <svg viewBox={`0 0 ${drawn.width} ${drawn.height}`} width={drawn.width} height={drawn.height} role="img" aria-label={t("plan")}>
        {drawn.edges.map((points, index) => (
          <path key={index} className="edge" d={points} />
        ))}
        {drawn.nodes.map(({ id, x, y, title, tool }) => (
          <g key={id} className={`node ${states.get(id) ?? "pending"}`} transform={`translate(${x - WIDTH / 2},${y - HEIGHT / 2})`}>
            <title>{visible(title)}</title>
            <rect width={WIDTH} height={HEIGHT} rx="10" />
            <circle cx="18" cy="20" r="5" />
            <text x="32" y="24">
              {oneLine(title, 24)}
            </text>
            <text x="32" y="44" className="tool">
              {oneLine(tool, 26)}
            </text>
          </g>
        ))}
      </svg>
    </div>
  );
}

function arrange(plan: Plan) {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 46, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  const ids = new Set(plan.steps.map((step) => String(step.id)));
  for (const step of plan.steps) graph.setNode(String(step.id), { width: WIDTH, height: HEIGHT });
  for (const step of plan.steps) {
    for (const before of step.dependencies) if (ids.has(String(before))) graph.setEdge(String(before), String(step.id));
  }
  layout(graph);
  const size = graph.graph() as { width?: number; height?: number };
  return {
    width: size.width ?? WIDTH,
    height: size.height ?? HEIGHT,
    nodes: plan.steps.map((step) => {
      const { x, y } = graph.node(String(step.id)) as { x: number; y: number };
      return { id: String(step.id), x, y, title: step.description, tool: step.tool_type === "none" ? "" : step.tool_type };
    }),
    edges: graph.edges().map((edge) => {
      const [from, to] = [graph.node(edge.v) as { x: number; y: number }, graph.node(edge.w) as { x: number; y: number }];
      const [start, end] = [from.x + WIDTH / 2, to.x - WIDTH / 2];
      const middle = (start + end) / 2;
      return `M${start},${from.y}C${middle},${from.y} ${middle},${to.y} ${end},${to.y}`;
    }),
  };
}
