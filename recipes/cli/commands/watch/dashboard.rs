//! A run, drawn into cells of a terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Widget, Wrap};
use spectrain_checkpoints::printable;

use super::figures::{Figures, Tau};
use super::paint::TIED;
use super::snapshot::{Seen, Snapshot, Stopped, Training};

/// Columns of what stands beside the chart.
const BESIDE: u16 = 30;
/// Columns under which there is no chart.
const NARROW: u16 = 60;
/// Rows that all of it takes.
pub(super) const ROWS: u16 = 22;
/// Points of a curve; of more, some are left out.
const POINTS: usize = 400;
/// Seconds after which it is told that a training has logged nothing.
const SILENT: f64 = 60.0;
/// Characters of an error that are shown.
const LONGEST_ERROR: usize = 400;
/// Columns of the bar of a share.
const BAR: usize = 16;

/// Draws a run as it was at a time, in seconds since 1970, into all of the cells.
pub(super) fn draw(snapshot: &Snapshot, now: f64, buffer: &mut Buffer) {
    let results = snapshot.results.len().min(4) as u16;
    let stages = stages(snapshot);
    let width = usize::from(buffer.area.width).max(1);
    let lines = |line: &Line| line.width().div_ceil(width).max(1) as u16 + 1;
    let ended = snapshot.stopped.as_ref().map(|stopped| ended(stopped, now));
    let rows_of = |line: &Line| wrapped_rows(&line.to_string(), width);
    let rows = [
        Constraint::Length(1),
        Constraint::Length(lines(&stages)),
        Constraint::Length(ended.as_ref().map_or(0, rows_of)),
        Constraint::Length(3),
        Constraint::Min(0),
        Constraint::Length(results),
    ];
    let [title, at_stages, at_end, at_step, middle, at_results] =
        Layout::vertical(rows).areas(buffer.area);
    let name = Span::styled(
        snapshot.name.clone(),
        Style::new().add_modifier(Modifier::BOLD),
    );
    Line::from(vec![name, format!("  {}", snapshot.recipe).into()]).render(title, buffer);
    let wrapped = |line| Paragraph::new(line).wrap(Wrap { trim: true });
    wrapped(stages).render(at_stages, buffer);
    if let Some(ended) = ended {
        wrapped(ended).render(at_end, buffer);
    }
    let Some(training) = &snapshot.training else {
        Line::from("nothing is trained yet").render(at_step, buffer);
        return;
    };
    let told = step(training, snapshot.stopped.as_ref(), now, width);
    Paragraph::new(told).render(at_step, buffer);
    figures(&training.figures, middle, buffer);
    let results: Vec<Line> = snapshot.results.iter().cloned().map(Line::from).collect();
    Paragraph::new(results).render(at_results, buffer);
}

/// The stages in one line, each with how far it is.
fn stages(snapshot: &Snapshot) -> Line<'static> {
    let mut spans = Vec::new();
    for (name, seen) in &snapshot.stages {
        let (how, colour) = match seen {
            Seen::Waiting => ("–".to_owned(), Color::DarkGray),
            Seen::Begun => ("begun".to_owned(), Color::Yellow),
            Seen::Done(seconds) => {
                let took = seconds.map_or(String::new(), |seconds| format!(" {}", time(seconds)));
                (format!("done{took}").replace(' ', TIED), Color::Green)
            }
            Seen::Stale => ("stale".to_owned(), Color::Yellow),
        };
        let gap = if spans.is_empty() { "" } else { "   " };
        spans.push(Span::raw(format!("{gap}{name}{TIED}")));
        spans.push(Span::styled(how, Style::new().fg(colour)));
    }
    Line::from(spans)
}

/// That nobody works on a run, the error with which it stopped, and what to do.
fn ended(stopped: &Stopped, now: f64) -> Line<'static> {
    let last = stopped.last.map_or(String::new(), |last| {
        format!(", last written {} ago", time(now - last))
    });
    let unsaved = stopped.unsaved.as_ref();
    let unsaved = unsaved.map_or(String::new(), |told| format!("; {told}"));
    let resumed = format!("the command that started it resumes it{unsaved}");
    match &stopped.error {
        None => Line::styled(
            format!("no process works on this run any more{last}; {resumed}"),
            Style::new().fg(Color::Yellow),
        ),
        Some(error) => {
            let words: Vec<&str> = error.split_whitespace().collect();
            let error = words.join(" ");
            let shown: String = error.chars().take(LONGEST_ERROR).collect();
            let rest = if shown.len() < error.len() { "…" } else { "" };
            Line::styled(
                format!(
                    "the run stopped with an error{last}: {}{rest} ({resumed})",
                    printable(shown.trim_end())
                ),
                Style::new().fg(Color::Red),
            )
        }
    }
}

/// Rows of a text whose words are wrapped into so many columns, and an empty one.
fn wrapped_rows(text: &str, width: usize) -> u16 {
    let (mut rows, mut used) = (1, 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let gap = usize::from(used > 0);
        if used + gap + length <= width {
            used += gap + length;
            continue;
        }
        rows += usize::from(used > 0) + length.saturating_sub(1) / width;
        used = (length - 1) % width + 1;
    }
    rows as u16 + 1
}

/// How far a training is, and its last figures.
fn step(
    training: &Training,
    stopped: Option<&Stopped>,
    now: f64,
    width: usize,
) -> Vec<Line<'static>> {
    let figures = &training.figures;
    let of = training
        .steps
        .map_or(String::new(), |steps| format!(" of {steps}"));
    let at = match training.ended {
        Some(step) => format!("{step}, ended by `train.patience`"),
        None => format!("{}{of}", figures.step),
    };
    let mut words = vec![format!("{}: step {at}", training.stage)];
    if !training.done {
        let left = training
            .steps
            .and_then(|steps| figures.seconds_left(steps, now));
        // One whose validation takes long says nothing meanwhile.
        let silent = figures.age(now).filter(|&age| age >= SILENT);
        words.extend(match (silent, stopped) {
            (_, Some(_)) => None,
            (Some(age), None) => Some(format!("last log line {} ago", time(age))),
            (None, None) => left.map(|left| format!("{} left", time(left))),
        });
    }
    let share = training
        .steps
        .map(|steps| figures.step as f64 / steps.max(1) as f64);
    let share = if training.done { Some(1.0) } else { share };
    let mut first = vec![Span::raw(words.join(", "))];
    if let Some(share) = share {
        let bar = bar(
            share,
            width
                .saturating_sub(words.join(", ").chars().count() + 2)
                .min(30),
        );
        first.insert(0, Span::raw("  "));
        first.insert(0, Span::styled(bar, Style::new().fg(Color::Green)));
    }
    let mut known = Vec::new();
    if let Some((_, loss)) = figures.loss.last() {
        known.push(format!("loss {loss:.4}"));
    }
    if let Some((_, loss)) = figures.held_out.last() {
        known.push(format!("held-out loss {loss:.4}"));
    }
    if let Some(rate) = figures.tokens_per_second {
        known.push(format!("{rate:.0} tokens/s"));
    }
    vec![Line::from(first), Line::from(known.join("   "))]
}

/// The curves of the loss, and beside them α and τ.
fn figures(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let beside = if area.width < NARROW {
        area.width
    } else {
        BESIDE
    };
    let columns = [Constraint::Min(0), Constraint::Length(beside)];
    let [chart, right] = Layout::horizontal(columns).spacing(1).areas(area);
    if area.width >= NARROW {
        losses(figures, chart, buffer);
    }
    let mut lines = Vec::new();
    if !figures.alphas.is_empty() {
        lines.push(Line::from("α by depth, in training"));
    }
    for (depth, alpha) in figures.alphas.iter().enumerate() {
        let bar = Span::styled(bar(*alpha, BAR), Style::new().fg(Color::Cyan));
        lines.push(Line::from(vec![
            format!("{:3} {alpha:.3} ", depth + 1).into(),
            bar,
        ]));
    }
    if !figures.taus.is_empty() {
        lines.push(Line::from(""));
        lines.push(Line::from("τ on held-out prompts"));
    }
    let room = usize::from(right.height).saturating_sub(lines.len());
    let hidden = figures.taus.len().saturating_sub(room);
    lines.extend(figures.taus[hidden..].iter().map(tau));
    Paragraph::new(lines).render(right, buffer);
}

fn tau(found: &Tau) -> Line<'static> {
    let interval = found
        .interval
        .map(|(low, high)| format!(" [{low:.2}, {high:.2}]"));
    let how = if found.decoded { "" } else { " simulated" };
    let tau = format!("{:.2}", found.tau);
    Line::from(format!(
        "{:6} {tau}{}{how}",
        found.step,
        interval.unwrap_or_default()
    ))
}

/// Losses over steps, in training and on held-out conversations.
fn losses(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let (trained, held_out) = (thinned(&figures.loss), thinned(&figures.held_out));
    let all = || {
        trained
            .iter()
            .chain(&held_out)
            .filter(|(_, loss)| loss.is_finite())
    };
    let Some(top) = all().map(|(_, loss)| *loss).reduce(f64::max) else {
        return;
    };
    let bottom = all().map(|(_, loss)| *loss).fold(top, f64::min);
    let room = ((top - bottom) * 0.05).max(1e-3);
    let (low, high) = ((bottom - room).max(0.0), top + room);
    let first = all().map(|(step, _)| *step).fold(f64::INFINITY, f64::min);
    let last = all()
        .map(|(step, _)| *step)
        .fold(first, f64::max)
        .max(first + 1.0);
    let curve = |points, name: &'static str, colour| {
        let of = Dataset::default()
            .name(name)
            .data(points)
            .marker(Marker::Braille);
        of.graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
    };
    let mut curves = vec![curve(&trained, "loss", Color::Cyan)];
    if !held_out.is_empty() {
        curves.push(curve(&held_out, "held out", Color::Yellow));
    }
    let digits = if high < 10.0 { 2 } else { 1 };
    let labels = [low, f64::midpoint(low, high), high].map(|loss| format!("{loss:.digits$}"));
    let steps = [first, last].map(|step| format!("{step:.0}"));
    let half = Constraint::Ratio(1, 2);
    Chart::new(curves)
        .hidden_legend_constraints((half, half))
        .x_axis(Axis::default().bounds([first, last]).labels(steps))
        .y_axis(Axis::default().bounds([low, high]).labels(labels))
        .render(area, buffer);
}

/// At most [`POINTS`] of the points, the last one among them.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(POINTS).max(1);
    let kept = points.iter().rev().step_by(stride).rev();
    kept.copied().filter(|(_, loss)| loss.is_finite()).collect()
}

/// A bar of a share of so many columns.
fn bar(share: f64, columns: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * columns as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(columns - full)
}

/// Seconds in words of two parts at most.
fn time(seconds: f64) -> String {
    let seconds = seconds.round().max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests;
