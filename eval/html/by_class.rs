//! The chart of acceptance by what the target's token is.
use std::fmt::Write;

use crate::draw::{Axis, label, line};
use crate::html::bars::{BAR, GAP, LEFT, NAME, RIGHT};
use crate::html::chart::{Chart, colour, marker};
use crate::html::markup::{Table, percent};
use crate::html::panel::Panel;
use crate::token_class::{ClassReport, TokenClass};

/// The colour, name and figures of a setting.
type Bar<'a> = (usize, &'a str, &'a ClassReport);
/// A class with the settings that have it.
type Group<'a> = (&'static str, Vec<Bar<'a>>);

/// A bar of α with its interval for each class and setting.
pub(crate) fn figure(panel: &Panel) -> String {
    let classes: Vec<Group> = TokenClass::ALL
        .iter()
        .map(|class| (class.name(), bars(panel, class.name())))
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    if classes.is_empty() {
        return String::new();
    }
    let x = Axis {
        from: LEFT,
        to: RIGHT,
        low: 0.0,
        high: 1.0,
    };
    let all: usize = classes.iter().map(|(_, bars)| bars.len()).sum();
    let tall = (NAME + GAP) * classes.len() as f64 + BAR * all as f64;
    let mut svg = String::new();
    for share in [0, 25, 50, 75, 100] {
        let at = x.at(f64::from(share) / 100.0);
        line(&mut svg, (at, 4.0), (at, tall), "class=\"grid\"");
        label(&mut svg, (at, tall + 18.0), "middle", &format!("{share} %"));
    }
    label(
        &mut svg,
        (x.at(0.5), tall + 37.0),
        "middle",
        "α, of the steps judged",
    );
    let mut top = 0.0;
    for (name, bars) in &classes {
        label(&mut svg, (LEFT, top + 15.0), "start", name);
        top += NAME;
        for (paint, _, class) in bars {
            draw(&mut svg, *paint, class, &x, top);
            top += BAR;
        }
        top += GAP;
    }
    let (table, told) = figures(&classes);
    let chart = Chart {
        id: format!("token-class-{}", panel.number),
        title: "α by what the target's token is".to_owned(),
        of: panel.title.clone(),
        description: format!("Acceptance rate α with its 95 % interval, in percent. {told}."),
        height: tall + 46.0,
        svg,
    };
    chart.figure(&panel.legend(), &table)
}

/// Of a class the settings that have it.
fn bars<'a>(panel: &'a Panel, name: &str) -> Vec<Bar<'a>> {
    let found = panel.series.iter().filter_map(|series| {
        let classes = &series.setting.token_classes;
        let class = classes.iter().find(|class| class.name == name)?;
        Some((series.paint, &*series.label, class))
    });
    found.collect()
}

fn draw(svg: &mut String, paint: usize, class: &ClassReport, x: &Axis, top: f64) {
    let (middle, colour) = (top + 0.5 * BAR, colour(paint));
    let end = x.at(class.alpha);
    _ = writeln!(
        svg,
        "<rect class=\"bar pale {colour}\" x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        top + 2.0,
        end - LEFT,
        BAR - 4.0
    );
    let mut reach = end;
    if let Some([low, high]) = class.alpha_ci95 {
        let whisker = format!("class=\"whisker {colour}\"");
        let (from, to) = ((x.at(low), middle), (x.at(high), middle));
        line(svg, from, to, &whisker);
        reach = reach.max(to.0);
    }
    marker(svg, (end, middle), paint);
    let told = percent(Some(class.alpha), None);
    label(svg, (reach + 10.0, middle + 4.5), "start", &told);
}

/// The same as a table and in words.
fn figures(classes: &[Group]) -> (Table, String) {
    let head = [
        "token of the target",
        "setting",
        "judged",
        "accepted",
        "α, % [95 % CI]",
    ];
    let mut table = Table::new("Acceptance by what the target's token is", 2, &head);
    let mut told = Vec::new();
    for (name, bars) in classes {
        let mut parts = Vec::new();
        for (_, setting, class) in bars {
            let alpha = percent(Some(class.alpha), class.alpha_ci95);
            parts.push(alpha.clone());
            table.rows.push(vec![
                (*name).to_owned(),
                (*setting).to_owned(),
                class.judged.to_string(),
                class.accepted.to_string(),
                alpha,
            ]);
        }
        told.push(format!("{name}: {}", parts.join(", ")));
    }
    (table, told.join("; "))
}
