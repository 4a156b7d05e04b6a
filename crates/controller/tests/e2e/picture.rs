//! Draws the panels of the dashboard as an SVG, from the answers of a real Prometheus and without Grafana.

use std::fmt::Write;

use serde_json::Value;

const COLUMN: f64 = 50.0;
const ROW: f64 = 26.0;
const COLOURS: [&str; 6] = ["#2f7ed8", "#8bbc21", "#d9534f", "#f0ad4e", "#6f42c1", "#20b2aa"];

/// A panel and the series that its queries found, with labels and values over time.
pub struct Panel {
    pub kind: String,
    pub title: String,
    pub place: Value,
    pub found: Vec<Value>,
}

/// Draws all panels into one SVG.
pub fn draw(panels: &[Panel], caption: &str) -> String {
    let bottom = panels.iter().map(|panel| number(&panel.place["y"]) + number(&panel.place["h"]));
    let (width, height) = (24.0 * COLUMN, bottom.fold(0.0, f64::max) * ROW + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"#f4f5f7\"/>\
         <text x=\"8\" y=\"{}\" fill=\"#555\">{}</text>\n",
        height - 10.0,
        escaped(caption)
    );
    for panel in panels {
        let at = |name: &str, unit: f64| number(&panel.place[name]) * unit;
        let (x, y, w, h) = (at("x", COLUMN), at("y", ROW), at("w", COLUMN), at("h", ROW));
        let title = escaped(&panel.title);
        if panel.kind == "row" {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
                x + 8.0,
                y + 18.0
            );
            continue;
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#fff\" stroke=\"#d8d9da\"/>\
             <text x=\"{}\" y=\"{}\">{title}</text>",
            x + 2.0,
            y + 2.0,
            w - 4.0,
            h - 4.0,
            x + 8.0,
            y + 18.0
        );
        match panel.kind.as_str() {
            "stat" | "gauge" => {
                let value = panel.found.first().map_or("none".into(), |series| short(last(series)));
                let _ = writeln!(
                    svg,
                    "<text x=\"{}\" y=\"{}\" font-size=\"30\" text-anchor=\"middle\">{value}</text>",
                    x + w / 2.0,
                    y + h / 2.0 + 18.0
                );
            }
            "table" => list(&mut svg, panel, x, y, h),
            _ => lines(&mut svg, panel, (x, y, w, h)),
        }
    }
    svg + "</svg>\n"
}

fn list(svg: &mut String, panel: &Panel, x: f64, y: f64, h: f64) {
    for (at, series) in panel.found.iter().enumerate() {
        let below = y + 36.0 + 15.0 * at as f64;
        if below > y + h - 8.0 {
            break;
        }
        let text = escaped(&format!("{}  {}", labels(series), short(last(series))));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{below}\" font-size=\"11\">{text}</text>", x + 10.0);
    }
    if panel.found.is_empty() {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" fill=\"#999\">none</text>", x + 10.0, y + 40.0);
    }
}

fn lines(svg: &mut String, panel: &Panel, (x, y, w, h): (f64, f64, f64, f64)) {
    let values = |series: &Value| -> Vec<(f64, f64)> {
        let point = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_str()?.parse().ok()?));
        let points = series["values"].as_array().into_iter().flatten().filter_map(point);
        points.filter(|(_, value): &(f64, f64)| value.is_finite()).collect()
    };
    let all: Vec<_> = panel.found.iter().flat_map(values).collect();
    let highest = all.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let (first, end) =
        all.iter().fold((f64::MAX, f64::MIN), |(low, high), (at, _)| (low.min(*at), high.max(*at)));
    let legend = 14.0 * panel.found.len().min(4) as f64;
    let (top, floor) = (y + 26.0, y + h - 12.0 - legend);
    for (number, series) in panel.found.iter().enumerate() {
        let place = |(at, value): (f64, f64)| {
            let across = if end > first { (at - first) / (end - first) } else { 1.0 };
            format!("{:.0},{:.0}", x + 10.0 + across * (w - 20.0), floor - value / highest * (floor - top))
        };
        let points: Vec<_> = values(series).into_iter().map(place).collect();
        let colour = COLOURS[number % COLOURS.len()];
        let _ =
            writeln!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/>", points.join(" "));
        if number < 4 {
            let text = escaped(&format!("{}  {}", labels(series), short(last(series))));
            let below = floor + 14.0 * (number + 1) as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{below}\" font-size=\"10\" fill=\"{colour}\">{text}</text>",
                x + 10.0
            );
        }
    }
    if panel.found.is_empty() {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" fill=\"#999\">none</text>", x + 10.0, y + 40.0);
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The last value of a series.
fn last(series: &Value) -> f64 {
    let pair = series["values"].as_array().and_then(|values| values.last());
    pair.and_then(|pair| pair[1].as_str()?.parse().ok()).unwrap_or(f64::NAN)
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.3}") }
}

/// The label values that distinguish a series from the others. All series are of one cluster, so that label is left
/// out.
fn labels(series: &Value) -> String {
    let of = series["metric"].as_object().into_iter().flatten();
    let shown = of.filter(|(name, _)| !matches!(name.as_str(), "__name__" | "cluster" | "instance" | "job"));
    shown.map(|(_, value)| value.as_str().unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
