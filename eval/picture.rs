//! Reports as a picture: how deep drafts are accepted, and τ with its interval.
use std::fmt::Write;

use crate::draw::{Axis, label, line, polyline};
use crate::report::{DatasetReport, Report};

/// Told apart in colour and in grey; they repeat where there are more curves.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a3d9a", "#7f7f7f",
];
/// Where the labels of the curves start.
const LABELS: f64 = 614.0;
/// More than the width of a letter of a label.
const LETTER: f64 = 7.0;
const GRID: &str = "#dddddd";
const TOP: f64 = 42.0;
const PLOT: f64 = 220.0;
/// Height of a row of the legend.
const ROW: f64 = 24.0;

/// A line of the legend, and what is drawn of it.
struct Curve<'a> {
    label: String,
    colour: &'static str,
    overall: &'a DatasetReport,
}

/// An SVG of the pooled results of `reports`, each under its name: on the left the share of passes that accept at least `k`
/// drafted tokens, on the right τ with its 95 % interval. Every setting of every report is a curve.
pub fn picture(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let settings = reports.iter().flat_map(|(name, report)| {
        report.settings.iter().map(move |setting| {
            let mut label = setting.heading();
            if let Some(target) = &setting.target {
                label = format!("{target}: {label}");
            }
            if several {
                label = format!("{name}: {label}");
            }
            (label, &setting.overall)
        })
    });
    let curves: Vec<Curve> = settings
        .zip(COLOURS.into_iter().cycle())
        .map(|((label, overall), colour)| Curve {
            label,
            colour,
            overall,
        })
        .collect();
    let rows = curves.len() as f64 * ROW;
    let height = TOP + PLOT.max(rows) + 60.0;
    let longest = curves.iter().map(|curve| curve.label.chars().count());
    let width = LABELS + LETTER * (longest.max().unwrap_or(0).max(20) + 6) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    draw_survival(&mut svg, &curves);
    draw_tau(&mut svg, &curves);
    svg.push_str("</svg>\n");
    svg
}

fn draw_survival(svg: &mut String, curves: &[Curve]) {
    let deepest = curves.iter().map(|curve| curve.overall.survival.len());
    let deepest = deepest.max().unwrap_or(0).max(1);
    let x = Axis {
        from: 50.0,
        to: 380.0,
        low: 0.0,
        high: deepest as f64,
    };
    let y = Axis {
        from: TOP + PLOT,
        to: TOP,
        low: 0.0,
        high: 1.0,
    };
    label(
        svg,
        (50.0, 22.0),
        "start",
        "Passes that accept at least k drafted tokens",
    );
    for percent in [0, 25, 50, 75, 100] {
        let height = y.at(f64::from(percent) / 100.0);
        line(svg, (x.from, height), (x.to, height), &stroke(GRID));
        label(
            svg,
            (x.from - 6.0, height + 4.0),
            "end",
            &format!("{percent} %"),
        );
    }
    // Of many depths, some are numbered.
    for depth in (0..=deepest).step_by(deepest.div_ceil(16)) {
        label(
            svg,
            (x.at(depth as f64), y.from + 18.0),
            "middle",
            &depth.to_string(),
        );
    }
    label(
        svg,
        (x.at(deepest as f64 / 2.0), y.from + 38.0),
        "middle",
        "k",
    );
    for curve in curves {
        draw_curve(svg, curve, (&x, &y));
    }
}

fn draw_curve(svg: &mut String, curve: &Curve, (x, y): (&Axis, &Axis)) {
    let shares = std::iter::once(&1.0).chain(&curve.overall.survival);
    let points = shares
        .enumerate()
        .map(|(depth, &share)| (x.at(depth as f64), y.at(share)));
    polyline(svg, points, &stroke(curve.colour));
}

fn draw_tau(svg: &mut String, curves: &[Curve]) {
    let highest = |curve: &Curve| {
        let overall = curve.overall;
        overall.tau_ci95.map(|[_, high]| high).or(overall.tau)
    };
    let highest = curves.iter().filter_map(highest).fold(2.0, f64::max);
    let x = Axis {
        from: 420.0,
        to: 600.0,
        low: 1.0,
        high: highest.ceil(),
    };
    label(
        svg,
        (x.from, 22.0),
        "start",
        "τ, tokens per pass of the target, with its 95 % interval",
    );
    let bottom = TOP + (curves.len() as f64 * ROW).max(ROW);
    for tau in (1..=x.high as u32).map(f64::from) {
        line(svg, (x.at(tau), TOP), (x.at(tau), bottom), &stroke(GRID));
        label(svg, (x.at(tau), bottom + 18.0), "middle", &tau.to_string());
    }
    for (row, curve) in curves.iter().enumerate() {
        let height = TOP + (row as f64 + 0.5) * ROW;
        let mut text = curve.label.clone();
        if let Some(tau) = curve.overall.tau {
            let [low, high] = curve.overall.tau_ci95.unwrap_or([tau, tau]);
            line(
                svg,
                (x.at(low), height),
                (x.at(high), height),
                &stroke(curve.colour),
            );
            _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{height:.1}\" r=\"4\" fill=\"{}\"/>",
                x.at(tau),
                curve.colour
            );
            text = format!("{tau:.2}  {text}");
        }
        label(svg, (LABELS, height + 4.0), "start", &text);
    }
}

/// How a line of this colour is drawn.
fn stroke(colour: &str) -> String {
    format!("stroke=\"{colour}\" stroke-width=\"2\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::report::{DrafterReport, SettingReport, TargetReport};

    fn report(tau: Option<f64>) -> Report {
        let overall = DatasetReport {
            tau,
            tau_ci95: tau.map(|tau| [tau - 0.5, tau + 0.5]),
            survival: vec![0.75, 0.5],
            ..DatasetReport::default()
        };
        let setting = SettingReport {
            target: None,
            drafter: None,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            verifier: "greedy".into(),
            lossy: false,
            draft: DraftReport::Chain {
                length: 2,
                tokens: None,
            },
            ends: None,
            datasets: Vec::new(),
            overall,
            sampling: None,
            estimate: None,
            calibration: None,
            groups: Default::default(),
            token_classes: Vec::new(),
        };
        Report::new(
            TargetReport::default(),
            DrafterReport::default(),
            vec![setting],
        )
    }

    #[test]
    fn a_curve_starts_at_all_passes_and_ends_at_the_deepest_draft() {
        let svg = picture(&[("a".into(), report(Some(2.25)))]);
        // Depth 0 to 2 over 330 units; all passes at the top, none at the bottom.
        let points = "points=\"50.0,42.0 215.0,97.0 380.0,152.0\"";
        assert!(svg.contains(points), "{svg}");
        // τ from 1 to 3 over 180 units.
        assert!(
            svg.contains("cx=\"532.5\"") && svg.contains(">2.25  T=0, greedy, chain 2<"),
            "{svg}"
        );
    }

    #[test]
    fn every_report_is_drawn_under_its_name_and_markup_in_a_name_is_text() {
        let svg = picture(&[
            ("<a&b>".into(), report(Some(2.0))),
            ("c".into(), report(None)),
        ]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        // Without a pass there is no τ to draw.
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(
            svg.contains("&lt;a&amp;b&gt;: T=0") && svg.contains(">c: T=0"),
            "{svg}"
        );
        assert!(picture(&[]).ends_with("</svg>\n"));
    }
}
