//! The curves of training: the loss, and τ of validations with its interval.
use crate::curves::{Curves, ValidationPoint};
use crate::draw::{Axis, label, line, polyline};
use crate::html::chart::{BOTTOM, Chart, RIGHT, TOP, colour, marker, taus};
use crate::html::markup::Table;
use crate::html::panel::legend;
use crate::interval::with_digits;

const LEFT: f64 = 46.0;
/// Points of a curve; of more, neighbours are drawn as their mean.
const POINTS: usize = 160;
/// Rows of a table of losses.
const ROWS: usize = 24;
/// Colours and markers of the two losses.
const TRAINED: usize = 0;
const HELD_OUT: usize = 1;

/// The curves of every stage of every training, each under its name.
pub(crate) fn figures(trainings: &[(String, Vec<Curves>)]) -> String {
    let several = trainings.len() > 1;
    let all = trainings.iter().flat_map(|(name, stages)| {
        let alone = stages.len() == 1;
        stages.iter().map(move |stage| match (several, alone) {
            (false, true) => (String::new(), stage),
            (false, false) => (stage.stage.clone(), stage),
            (true, true) => (name.clone(), stage),
            (true, false) => (format!("{name}, {}", stage.stage), stage),
        })
    });
    let drawn = all.enumerate().map(|(number, (of, curves))| {
        let charts = losses(number, &of, curves) + &validated(number, &of, curves);
        if charts.is_empty() {
            return charts;
        }
        let heading = match &*of {
            "" => String::new(),
            of => format!("<h3>{}</h3>\n", crate::draw::escape(of)),
        };
        format!("{heading}<div class=\"charts\">\n{charts}</div>\n")
    });
    drawn.collect()
}

/// The loss of training, and that on held-out conversations.
fn losses(number: usize, of: &str, curves: &Curves) -> String {
    let trained = thinned(&curves.loss, POINTS);
    let held_out = curves.validations.iter();
    let held_out: Vec<(u64, f64)> = held_out
        .filter_map(|point| Some((point.step, point.loss?)))
        .collect();
    let all = || trained.iter().chain(&held_out).map(|&(_, loss)| loss);
    let (Some(low), Some(high)) = (all().reduce(f64::min), all().reduce(f64::max)) else {
        return String::new();
    };
    let mut svg = String::new();
    let x = steps(&mut svg, last_step(curves));
    let y = values(&mut svg, &ticks(low, high));
    let at = |&(step, loss): &(u64, f64)| (x.at(step as f64), y.at(loss));
    let drawn = format!("class=\"curve {}\"", colour(TRAINED));
    polyline(&mut svg, trained.iter().map(at), &drawn);
    let drawn = format!("class=\"curve thin {}\"", colour(HELD_OUT));
    polyline(&mut svg, held_out.iter().map(at), &drawn);
    held_out
        .iter()
        .for_each(|point| marker(&mut svg, at(point), HELD_OUT));
    let mut table = Table::new("Loss by step", 0, &["step", "training", "held out"]);
    for (step, loss) in rows(&thinned(&curves.loss, ROWS), &held_out) {
        let cell = |loss: Option<f64>| loss.map_or("–".into(), |loss| format!("{loss:.4}"));
        let [trained, held_out] = loss.map(cell);
        table.rows.push(vec![step.to_string(), trained, held_out]);
    }
    let ends = |points: &[(u64, f64)]| match points {
        [] => "not logged".to_owned(),
        [first, .., last] => format!("from {:.3} to {:.3}", first.1, last.1),
        [only] => format!("{:.3}", only.1),
    };
    let chart = Chart {
        id: format!("loss-{number}"),
        title: "Loss".to_owned(),
        of: of.to_owned(),
        description: format!(
            "Loss by step: of training {}, on held-out conversations {}.",
            ends(&trained),
            ends(&held_out)
        ),
        height: BOTTOM + 48.0,
        svg,
    };
    let names = [(TRAINED, "training"), (HELD_OUT, "held-out conversations")];
    chart.figure(&legend(names.into_iter()), &table)
}

/// τ of the validations.
fn validated(number: usize, of: &str, curves: &Curves) -> String {
    let points: Vec<&ValidationPoint> = curves
        .validations
        .iter()
        .filter(|point| point.tau.is_some())
        .collect();
    let highest = points.iter().filter_map(|point| {
        let high = point.tau_ci95.map(|[_, high]| high);
        high.or(point.tau)
    });
    let Some(highest) = highest.reduce(f64::max) else {
        return String::new();
    };
    let mut svg = String::new();
    let x = steps(&mut svg, last_step(curves));
    let y = values(
        &mut svg,
        &taus(highest)
            .iter()
            .map(|&tau| (tau, tau.to_string()))
            .collect::<Vec<_>>(),
    );
    let class = colour(TRAINED);
    let ends = points
        .iter()
        .filter_map(|point| Some((x.at(point.step as f64), y.at(point.tau?))));
    polyline(
        &mut svg,
        ends.clone(),
        &format!("class=\"curve thin {class}\""),
    );
    for point in &points {
        if let Some([low, high]) = point.tau_ci95 {
            let at = x.at(point.step as f64);
            let paint = format!("class=\"whisker {class}\"");
            line(&mut svg, (at, y.at(low)), (at, y.at(high)), &paint);
        }
    }
    ends.for_each(|end| marker(&mut svg, end, TRAINED));
    let mut table = Table::new("τ of validations [95 % CI] by step", 0, &["step", "τ"]);
    let cells = |point: &&ValidationPoint| {
        let tau = with_digits(point.tau, point.tau_ci95, 2);
        vec![point.step.to_string(), tau]
    };
    table.rows = points.iter().map(cells).collect();
    let told = table
        .rows
        .iter()
        .map(|row| format!("step {}: {}", row[0], row[1]));
    let chart = Chart {
        id: format!("validated-{number}"),
        title: "τ on validation prompts".to_owned(),
        of: of.to_owned(),
        description: format!(
            "τ with its 95 % interval by step. {}.",
            Vec::from_iter(told).join("; ")
        ),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure("", &table)
}

fn last_step(curves: &Curves) -> u64 {
    let logged = curves.loss.iter().map(|&(step, _)| step);
    let validated = curves.validations.iter().map(|point| point.step);
    logged.chain(validated).max().unwrap_or(1).max(1)
}

/// The level axis of steps, with some of them marked.
fn steps(svg: &mut String, last: u64) -> Axis {
    let x = Axis {
        from: LEFT,
        to: RIGHT,
        low: 0.0,
        high: last as f64,
    };
    for (step, name) in ticks(0.0, last as f64) {
        if step <= last as f64 && step.fract() == 0.0 {
            label(svg, (x.at(step), BOTTOM + 19.0), "middle", &name);
        }
    }
    let middle = 0.5 * (LEFT + RIGHT);
    label(svg, (middle, BOTTOM + 38.0), "middle", "optimiser step");
    x
}

/// The upright axis of values, with its lines at these.
fn values(svg: &mut String, marks: &[(f64, String)]) -> Axis {
    let end = |mark: Option<&(f64, String)>, or| mark.map_or(or, |mark| mark.0);
    let y = Axis {
        from: BOTTOM,
        to: TOP,
        low: end(marks.first(), 0.0),
        high: end(marks.last(), 1.0),
    };
    for (value, name) in marks {
        let height = y.at(*value);
        line(svg, (LEFT, height), (RIGHT, height), "class=\"grid\"");
        label(svg, (LEFT - 6.0, height + 4.0), "end", name);
    }
    y
}

/// Round values that reach from at most `low` to at least `high`, and their names.
fn ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let span = (high - low).max(1e-3 * high.abs()).max(1e-6);
    let power = 10_f64.powf((span / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    let step = steps.into_iter().find(|step| span / step <= 5.0);
    let step = step.unwrap_or(10.0 * power);
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let first = (low / step + 1e-9).floor() as i64;
    let last = ((high / step - 1e-9).ceil() as i64).max(first + 1);
    let marks = first..=last;
    marks
        .map(|at| at as f64 * step)
        .map(|value| (value, format!("{value:.digits$}")))
        .collect()
}

/// At most so many points: neighbours become their mean, at the last step of them.
fn thinned(points: &[(u64, f64)], most: usize) -> Vec<(u64, f64)> {
    let size = points.len().div_ceil(most).max(1);
    let mean = |points: &[(u64, f64)]| {
        let sum: f64 = points.iter().map(|&(_, value)| value).sum();
        (points[points.len() - 1].0, sum / points.len() as f64)
    };
    points.chunks(size).map(mean).collect()
}

/// The values of both curves at every step of either.
fn rows(one: &[(u64, f64)], other: &[(u64, f64)]) -> Vec<(u64, [Option<f64>; 2])> {
    let mut steps: Vec<u64> = one.iter().chain(other).map(|&(step, _)| step).collect();
    steps.sort_unstable();
    steps.dedup();
    let at = |points: &[(u64, f64)], step: u64| {
        let found = points.iter().find(|(of, _)| *of == step);
        found.map(|&(_, value)| value)
    };
    let row = |step: u64| (step, [at(one, step), at(other, step)]);
    steps.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_reach_over_all_values() {
        let names = |low, high| -> Vec<String> {
            ticks(low, high).into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(
            names(0.0, 1000.0),
            ["0", "200", "400", "600", "800", "1000"]
        );
        assert_eq!(names(1.93, 3.4), ["1.5", "2.0", "2.5", "3.0", "3.5"]);
        assert_eq!(
            names(2.0, 2.0),
            ["2.0000", "2.0005", "2.0010", "2.0015", "2.0020"][..2]
        );
        for (low, high) in [(0.013, 0.77), (12.5, 13.0), (-1.0, 4.2)] {
            let marks = ticks(low, high);
            assert!(marks[0].0 <= low && marks[marks.len() - 1].0 >= high);
            assert!(marks.len() <= 8, "{marks:?}");
        }
    }

    #[test]
    fn a_long_curve_is_thinned_to_means() {
        let points: Vec<(u64, f64)> = (1..=10).map(|step| (step, step as f64)).collect();
        assert_eq!(
            thinned(&points, 5),
            [(2, 1.5), (4, 3.5), (6, 5.5), (8, 7.5), (10, 9.5)]
        );
        assert_eq!(thinned(&points, 10), points);
        assert_eq!(thinned(&[], 10), []);
    }

    #[test]
    fn curves_that_were_not_logged_are_not_drawn() {
        let nothing = Curves {
            stage: "train".into(),
            ..Curves::default()
        };
        assert_eq!(figures(&[("a".into(), vec![nothing.clone()])]), "");
        let point = ValidationPoint {
            step: 10,
            loss: Some(2.0),
            tau: None,
            tau_ci95: None,
        };
        let one = Curves {
            validations: vec![point],
            ..nothing
        };
        let html = figures(&[("a".into(), vec![one])]);
        assert!(
            html.contains("id=\"loss-0-title\"") && !html.contains("validated"),
            "{html}"
        );
    }
}
