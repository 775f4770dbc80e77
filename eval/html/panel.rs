//! What is drawn together: the settings of one report, or the reports that were decoded in one way.
use std::fmt::Write;

use crate::draw::escape;
use crate::html::chart::marker;
use crate::html::palette::MOST;
use crate::paired::own::OwnLengths;
use crate::report::{Report, SettingReport};

/// What has one colour and marker: those of its report among several, else those of its place in the panel.
pub(crate) struct Series<'a> {
    /// What it is called in this panel.
    pub(crate) label: String,
    /// What it is called on the page.
    pub(crate) heading: String,
    /// Its colour and marker.
    pub(crate) paint: usize,
    pub(crate) setting: &'a SettingReport,
}

/// Series that are drawn in one chart of each kind.
pub(crate) struct Panel<'a> {
    /// Its place on the page.
    pub(crate) number: usize,
    /// What its series have in common, where there are several panels.
    pub(crate) title: String,
    pub(crate) series: Vec<Series<'a>>,
}

/// One report's settings stand side by side, for each target, and of several drafters for each temperature; of several reports those
/// that were decoded in one way do, drafters without training among them.
pub(crate) fn panels<'a>(reports: &'a [(String, Report)]) -> Vec<Panel<'a>> {
    let compared = reports.len() > 1;
    let targets = reports.iter().any(|(_, report)| report.targets.len() > 1);
    let with_free = reports.iter().filter(|(_, report)| report.has_free());
    let with_free = with_free.count();
    let own = OwnLengths::of(reports);
    let mut groups: Vec<(String, Vec<Series<'a>>)> = Vec::new();
    for (number, (name, report)) in reports.iter().enumerate() {
        let several = report.has_free();
        for setting in &report.settings {
            let target = targets.then(|| report.target_of(setting));
            let heading = setting.heading();
            let way = match compared {
                true if own.has(setting) => own.heading(setting),
                true => setting.way(),
                false => heading.clone(),
            };
            // Beside others, a drafter stands with those at the same temperature.
            let sampled = (!compared && several).then(|| setting.sampled());
            let parts = [target, compared.then_some(&*way), sampled.as_deref()];
            let title = Vec::from_iter(parts.into_iter().flatten()).join(": ");
            let parts = [target, compared.then_some(&**name), Some(&*heading)];
            let label = match &setting.drafter {
                _ if !compared => heading.clone(),
                None => own.row(name, setting),
                Some(free) if with_free == 1 => free.clone(),
                Some(free) => format!("{name}: {free}"),
            };
            let series = Series {
                label,
                heading: Vec::from_iter(parts.into_iter().flatten()).join(": "),
                paint: number,
                setting,
            };
            match groups.iter_mut().find(|(known, _)| *known == title) {
                Some((_, all)) => all.push(series),
                None => groups.push((title, vec![series])),
            }
        }
    }
    let mut panels: Vec<Panel> = Vec::new();
    for (title, series) in groups {
        let mut rest = series.into_iter().peekable();
        while rest.peek().is_some() {
            let mut series: Vec<Series> = rest.by_ref().take(MOST).collect();
            if !compared || reports.len() > MOST || with_free > 0 {
                let places = series.iter_mut().enumerate();
                places.for_each(|(place, series)| series.paint = place);
            }
            panels.push(Panel {
                number: panels.len(),
                title: title.clone(),
                series,
            });
        }
    }
    panels
}

impl Panel<'_> {
    /// What figures say of the panel, in rows of charts; under its title where there are several.
    pub(crate) fn charts(&self, charts: &str) -> String {
        let row = match charts {
            "" => return String::new(),
            charts => format!("<div class=\"charts\">\n{charts}</div>\n"),
        };
        match &*self.title {
            "" => row,
            title => format!("<h3>{}</h3>\n{row}", escape(title)),
        }
    }

    /// The marker and name of each series.
    pub(crate) fn legend(&self) -> String {
        legend(
            self.series
                .iter()
                .map(|series| (series.paint, &*series.label)),
        )
    }
}

/// The marker and name of each of these.
pub(crate) fn legend<'a>(labels: impl Iterator<Item = (usize, &'a str)>) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    for (at, label) in labels {
        let mut sign = String::new();
        marker(&mut sign, (8.0, 8.0), at);
        _ = write!(
            html,
            "<li><svg viewBox=\"0 0 16 16\" width=\"16\" height=\"16\" aria-hidden=\"true\">{sign}</svg>{}</li>",
            escape(label)
        );
    }
    html + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::examples;

    #[test]
    fn drafters_without_training_stand_beside_those_of_several_reports() {
        let named = |name: &str| (name.to_owned(), examples::report());
        let mut reports = [named("a"), named("b")];
        let free = SettingReport {
            drafter: Some("prompt-lookup".into()),
            ..reports[0].1.settings[0].clone()
        };
        reports[0].1.settings.push(free.clone());
        let labels = |reports: &[(String, Report)]| {
            let panels = panels(reports);
            let [panel] = &panels[..] else {
                panic!("one panel")
            };
            let series = panel.series.iter();
            series
                .map(|series| (series.label.clone(), series.paint))
                .collect::<Vec<_>>()
        };
        let expected = [("a", 0), ("prompt-lookup", 1), ("b", 2)];
        let expected = expected.map(|(label, paint)| (label.to_owned(), paint));
        assert_eq!(labels(&reports), expected);
        // Where several reports have one, it is said whose it is.
        reports[1].1.settings.push(free);
        let [_, first, _, last] = &labels(&reports)[..] else {
            panic!("four")
        };
        assert_eq!(first.0, "a: prompt-lookup");
        assert_eq!(last.0, "b: prompt-lookup");
    }
}
