// The panels of a dashboard, drawn by Grafana's own components from answers of Prometheus (`window.answers`):
// {from, to, panels: [{title, about, unit, x, y, w, h, curves: [{legend, times, values}]}]}, times in milliseconds.
import React from "react";
import { createRoot } from "react-dom/client";
import { applyFieldOverrides, createTheme, dateTime, FieldType, ThemeContext, toDataFrame } from "@grafana/data";
import { PanelChrome, TimeSeries } from "@grafana/ui";

const COLUMN = 58;
const ROW = 34;
const GAP = 8;
const STYLE = { drawStyle: "line", lineWidth: 2, fillOpacity: 8, pointSize: 5, showPoints: "auto", spanNulls: false };
const theme = createTheme({ colors: { mode: "light" } });

function framesOf(panel) {
  const frames = panel.curves.map((curve) =>
    toDataFrame({
      fields: [
        { name: "time", type: FieldType.time, values: curve.times },
        {
          name: curve.legend,
          type: FieldType.number,
          values: curve.values,
          config: { displayName: curve.legend, unit: panel.unit, color: { mode: "palette-classic" }, custom: STYLE },
        },
      ],
    })
  );
  const config = { defaults: {}, overrides: [] };
  return applyFieldOverrides({ data: frames, fieldConfig: config, replaceVariables: (text) => text, theme, timeZone: "utc" });
}

function Panel({ panel, range }) {
  const width = panel.w * COLUMN - GAP;
  const height = panel.h * ROW - GAP;
  const legend = { displayMode: "list", placement: "bottom", showLegend: true, calcs: [] };
  return (
    <div style={{ position: "absolute", left: panel.x * COLUMN, top: panel.y * ROW }}>
      <PanelChrome width={width} height={height} title={panel.title} description={panel.about}>
        {(innerWidth, innerHeight) => (
          <TimeSeries frames={framesOf(panel)} width={innerWidth} height={innerHeight} timeRange={range} timeZone="utc" legend={legend} structureRev={1} />
        )}
      </PanelChrome>
    </div>
  );
}

const { from, to, panels } = window.answers;
const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
createRoot(document.getElementById("panels")).render(
  <ThemeContext.Provider value={theme}>
    {panels.map((panel) => (
      <Panel key={panel.title} panel={panel} range={range} />
    ))}
  </ThemeContext.Provider>
);
