//! The picture of a report: for each pool how full it was, and what its disks carried. SVG 1.1 without scripts and without anything that is
//! fetched, so that it is shown wherever pictures are.

use std::fmt::Write as _;

use engine::property::nice_bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{PoolPoint, PoolReport, Report};

/// Pools that are drawn, at most.
const POOLS_MAX: usize = 8;
const WIDTH: f64 = 720.0;
/// Where the lines are: beside the numbers, below the title.
const LEFT: f64 = 70.0;
const PLOT_WIDTH: f64 = WIDTH - LEFT - 20.0;
const PLOT_HEIGHT: f64 = 110.0;
const TITLE_HEIGHT: f64 = 28.0;
const CHART_HEIGHT: f64 = TITLE_HEIGHT + PLOT_HEIGHT + 26.0;
/// Days that have a mark, at most.
const DAY_MARKS_MAX: u64 = 16;

/// Returns the picture.
#[must_use]
pub fn picture(report: &Report) -> String {
    let pools = &report.pools[..report.pools.len().min(POOLS_MAX)];
    let height = CHART_HEIGHT * 2.0 * pools.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut top = 0.0;
    for pool in pools {
        capacity(&mut svg, report, pool, top);
        rates(&mut svg, report, pool, top + CHART_HEIGHT);
        top += 2.0 * CHART_HEIGHT;
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line: what it is of, its color.
type Line = (fn(&PoolPoint) -> u64, &'static str);

fn capacity(svg: &mut String, report: &Report, pool: &PoolReport, top: f64) {
    let most = pool
        .points
        .iter()
        .map(|point| point.size)
        .max()
        .unwrap_or(0);
    let title = format!("{}: used", pool.name);
    frame(svg, report, top, &title, most);
    line(
        svg,
        report,
        pool,
        top,
        most,
        (|point| point.used, "#1f5fa8"),
    );
}

fn rates(svg: &mut String, report: &Report, pool: &PoolReport, top: f64) {
    let each = pool
        .points
        .iter()
        .map(|point| point.read.max(point.written));
    let most = each.max().unwrap_or(0);
    let title = format!("{}: read (green) and written (red) a second", pool.name);
    frame(svg, report, top, &title, most);
    let lines: [Line; 2] = [
        (|point| point.read, "#2e7d32"),
        (|point| point.written, "#c62828"),
    ];
    for each in lines {
        line(svg, report, pool, top, most, each);
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escaped(text);
    // To a string nothing fails.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Title, frame, the numbers at the side, the days below.
fn frame(svg: &mut String, report: &Report, top: f64, title: &str, most: u64) {
    let (plot, bottom) = (top + TITLE_HEIGHT, top + TITLE_HEIGHT + PLOT_HEIGHT);
    text(svg, LEFT, top + 18.0, "start", title);
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{plot}\" width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" fill=\"#f6f7f9\" stroke=\"#999\"/>"
    );
    text(svg, LEFT - 6.0, plot + 10.0, "end", &nice_bytes(most));
    text(svg, LEFT - 6.0, bottom, "end", "0");
    let days = report.to.saturating_sub(report.from) / 86_400;
    let step = days.div_ceil(DAY_MARKS_MAX / 2).max(1);
    for day in (0..days).step_by(usize::try_from(step).unwrap_or(1)) {
        let time = report.from + day * 86_400;
        let x = place(report, time);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{plot}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>"
        );
        text(svg, x, bottom + 15.0, "start", &date(time));
    }
}

fn date(time: u64) -> String {
    let seconds = i64::try_from(time).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    at.to_zoned(TimeZone::system())
        .strftime("%a %e %b")
        .to_string()
}

/// Where a time is, from left to right.
fn place(report: &Report, time: u64) -> f64 {
    let length = report.to.saturating_sub(report.from).max(1);
    let passed = time.saturating_sub(report.from).min(length);
    LEFT + PLOT_WIDTH * passed as f64 / length as f64
}

fn line(
    svg: &mut String,
    report: &Report,
    pool: &PoolReport,
    top: f64,
    most: u64,
    (value, color): Line,
) {
    let bottom = top + TITLE_HEIGHT + PLOT_HEIGHT;
    let points = pool.points.iter().map(|point| {
        let share = value(point) as f64 / most.max(1) as f64;
        let y = bottom - PLOT_HEIGHT * share.min(1.0);
        format!("{:.1},{y:.1}", place(report, point.time))
    });
    let points: Vec<String> = points.collect();
    let points = points.join(" ");
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" points=\"{points}\"/>"
    );
}

/// What may stand in XML.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML 1.0, 2.2: other control characters are none of it.
            letter if letter.is_control() && letter != '\n' => escaped.push('?'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
