//! Line charts over time, as SVG that inherits the page's colours.

use std::fmt::Write as _;

use super::scale::{Axis, clock, number, time_ticks};
use crate::drive::text::time;

/// Size of a chart in its own units; the page scales it to the space there is.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 230.0;
/// Space for labels around the plot. The left one fits "100 ms" in the large type of small screens.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 30.0;

/// What the values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Counts of things, whole numbers.
    Count,
    /// Any number per second.
    Rate,
    /// Times in seconds.
    Time,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// What is shown, with its unit.
    pub(crate) title: String,
    pub(crate) quantity: Quantity,
    pub(crate) lines: Vec<Line>,
    /// Horizontal lines with their labels.
    pub(crate) limits: Vec<(String, f64)>,
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// Values hold until the next point instead of changing evenly.
    pub(crate) steps: bool,
    /// Seconds from the page's origin, and the value; none where nothing is known.
    pub(crate) points: Vec<(f64, Option<f64>)>,
}

/// How a line looks: its class in the style sheet, which gives colour, width and dashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// What is asked for.
    Asked,
    /// What is there, shaded down to the axis.
    There,
    /// A second thing that is there.
    Also,
    /// What goes wrong.
    Bad,
    /// The middle of a distribution.
    Middle,
    /// Its upper part.
    Upper,
    /// Its tail.
    Tail,
}

impl Look {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::There => "there",
            Self::Also => "also",
            Self::Bad => "bad",
            Self::Middle => "middle",
            Self::Upper => "upper",
            Self::Tail => "tail",
        }
    }
}

/// The time axis that all charts of a page share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimeAxis<'a> {
    /// Length in seconds.
    pub(crate) seconds: f64,
    /// Instants of numbered events.
    pub(crate) events: &'a [f64],
}

impl TimeAxis<'_> {
    fn x(&self, t: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (t / self.seconds).clamp(0.0, 1.0)
    }
}

fn y(place: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - place)
}

impl Chart {
    /// There is something to draw.
    pub(crate) fn has_points(&self) -> bool {
        self.lines
            .iter()
            .any(|line| line.points.iter().any(|(_, value)| value.is_some()))
    }

    fn axis(&self) -> Axis {
        let values = || {
            self.lines
                .iter()
                .flat_map(|line| line.points.iter().filter_map(|(_, value)| *value))
        };
        // A limit far above everything would flatten what matters; it is then named but not drawn.
        let highest = values().fold(0.0, f64::max);
        let limits = self
            .limits
            .iter()
            .map(|(_, limit)| *limit)
            .filter(|limit| *limit <= 3.0 * highest);
        match self.quantity {
            Quantity::Count => Axis::linear(values().chain(limits).fold(0.0, f64::max), true),
            Quantity::Rate => Axis::linear(values().chain(limits).fold(0.0, f64::max), false),
            Quantity::Time => Axis::for_times(values().chain(limits)),
        }
    }

    fn label(&self, value: f64) -> String {
        match self.quantity {
            Quantity::Count | Quantity::Rate => number(value),
            Quantity::Time if value <= 0.0 => "0".to_owned(),
            Quantity::Time => short_time(value),
        }
    }

    /// The chart's picture.
    pub(crate) fn svg(&self, time_axis: &TimeAxis<'_>) -> String {
        let axis = self.axis();
        let mut out = format!(
            r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
            escape(&self.title)
        );
        self.frame(&mut out, &axis, time_axis);
        for line in &self.lines {
            draw(&mut out, line, &axis, time_axis);
        }
        self.draw_limits(&mut out, &axis);
        events(&mut out, time_axis);
        out.push_str("</svg>");
        out
    }

    fn frame(&self, out: &mut String, axis: &Axis, time_axis: &TimeAxis<'_>) {
        for tick in &axis.ticks {
            let at = y(axis.place(*tick));
            let _infallible = write!(
                out,
                r#"<line class="grid" x1="{LEFT}" x2="{:.0}" y1="{at:.1}" y2="{at:.1}"/><text class="tick" x="{:.0}" y="{at:.1}" dy="0.35em" text-anchor="end">{}</text>"#,
                WIDTH - RIGHT,
                LEFT - 6.0,
                self.label(*tick)
            );
        }
        for tick in time_ticks(time_axis.seconds) {
            let at = time_axis.x(tick);
            let _infallible = write!(
                out,
                r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{:.0}" y2="{:.0}"/><text class="tick" x="{at:.1}" y="{:.0}" text-anchor="middle">{}</text>"#,
                y(0.0),
                y(0.0) + 5.0,
                HEIGHT - 6.0,
                clock(tick, time_axis.seconds)
            );
        }
        let _infallible = write!(
            out,
            r#"<line class="axis" x1="{LEFT}" x2="{:.0}" y1="{:.0}" y2="{:.0}"/>"#,
            WIDTH - RIGHT,
            y(0.0),
            y(0.0)
        );
    }

    fn draw_limits(&self, out: &mut String, axis: &Axis) {
        let top = axis.ticks.last().copied().unwrap_or(0.0);
        for (label, limit) in self.limits.iter().filter(|(_, limit)| *limit <= top) {
            let at = y(axis.place(*limit));
            let _infallible = write!(
                out,
                r#"<line class="limit" x1="{LEFT}" x2="{:.0}" y1="{at:.1}" y2="{at:.1}"><title>{}</title></line>"#,
                WIDTH - RIGHT,
                escape(label)
            );
        }
    }

    /// Names of the lines and limits, as HTML that wraps where the screen is narrow.
    pub(crate) fn legend(&self) -> String {
        let axis = self.axis();
        let top = axis.ticks.last().copied().unwrap_or(0.0);
        let mut out = String::from(r#"<p class="legend">"#);
        for line in &self.lines {
            let _infallible = write!(
                out,
                r#"<span class="key {}"><i></i>{}</span>"#,
                line.look.class(),
                escape(&line.name)
            );
        }
        for (label, limit) in &self.limits {
            let hidden = if *limit > top {
                " (above the chart)"
            } else {
                ""
            };
            let _infallible = write!(
                out,
                r#"<span class="key limit"><i></i>{}{hidden}</span>"#,
                escape(label)
            );
        }
        if axis.is_logarithmic() {
            out.push_str(r#"<span class="key">logarithmic scale</span>"#);
        }
        out.push_str("</p>");
        out
    }
}

/// A time for an axis: no more digits than round numbers need.
fn short_time(seconds: f64) -> String {
    if seconds < 0.001 {
        format!("{} µs", number(seconds * 1e6))
    } else if seconds < 1.0 {
        format!("{} ms", number(seconds * 1e3))
    } else if seconds < 10_000.0 {
        format!("{} s", number(seconds))
    } else {
        time(seconds)
    }
}

/// Draws the stretches of a line between unknown values; a value on its own becomes a dot.
fn draw(out: &mut String, line: &Line, axis: &Axis, time_axis: &TimeAxis<'_>) {
    let mut stretch: Vec<(f64, f64)> = Vec::new();
    let mut flush = |stretch: &mut Vec<(f64, f64)>| {
        match stretch.as_slice() {
            [] => {}
            [(x, y)] => {
                let _infallible = write!(
                    out,
                    r#"<circle class="line {}" cx="{x:.1}" cy="{y:.1}" r="1.5"/>"#,
                    line.look.class()
                );
            }
            points => {
                let path = path(points, line.steps);
                if line.look == Look::There {
                    let (first, last) = (points[0].0, points[points.len() - 1].0);
                    let _infallible = write!(
                        out,
                        r#"<path class="area" d="{path}L{last:.1} {:.1}L{first:.1} {:.1}Z"/>"#,
                        y(0.0),
                        y(0.0)
                    );
                }
                let _infallible = write!(
                    out,
                    r#"<path class="line {}" d="{path}"/>"#,
                    line.look.class()
                );
            }
        }
        stretch.clear();
    };
    for (t, value) in &line.points {
        match value {
            Some(value) => stretch.push((time_axis.x(*t), y(axis.place(*value)))),
            None => flush(&mut stretch),
        }
    }
    if line.steps
        && let Some((_, last)) = stretch.last().copied()
    {
        // The last value holds to the end.
        stretch.push((time_axis.x(time_axis.seconds), last));
    }
    flush(&mut stretch);
}

fn path(points: &[(f64, f64)], steps: bool) -> String {
    let mut path = String::with_capacity(points.len() * 12);
    for (position, (x, y)) in points.iter().enumerate() {
        let _infallible = match (position, steps) {
            (0, _) => write!(path, "M{x:.1} {y:.1}"),
            (_, false) => write!(path, "L{x:.1} {y:.1}"),
            (_, true) => write!(path, "H{x:.1}V{y:.1}"),
        };
    }
    path
}

/// Lines at the events, and their numbers above. Events that nearly coincide share a mark.
fn events(out: &mut String, time_axis: &TimeAxis<'_>) {
    // Place of a mark, and the first and last number it stands for.
    let mut marks: Vec<(f64, usize, usize)> = Vec::new();
    for (position, at) in time_axis.events.iter().enumerate() {
        let x = time_axis.x(*at);
        let _infallible = write!(
            out,
            r#"<line class="event" x1="{x:.1}" x2="{x:.1}" y1="{TOP:.0}" y2="{:.0}"/>"#,
            y(0.0)
        );
        match marks.last_mut() {
            Some((before, _, last)) if x - *before < 36.0 => *last = position + 1,
            _ => marks.push((x, position + 1, position + 1)),
        }
    }
    for (x, first, last) in marks {
        let (text, width) = if first == last {
            (first.to_string(), 20.0)
        } else {
            (format!("{first}–{last}"), 34.0)
        };
        let _infallible = write!(
            out,
            r#"<rect class="event-mark" x="{:.1}" y="{:.0}" width="{width}" height="20" rx="10"/><text class="event-number" x="{x:.1}" y="{:.0}" dy="0.35em" text-anchor="middle">{text}</text>"#,
            x - width / 2.0,
            TOP - 23.0,
            TOP - 13.0,
        );
    }
}

/// Text as HTML and SVG want it.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(character),
        }
    }
    out
}
