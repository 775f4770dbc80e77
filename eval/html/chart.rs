//! A chart of the page: a drawing with its name and description, and the same figures as a table.
use std::fmt::Write;

use crate::draw::{Axis, escape, label, line};
use crate::html::markup::Table;
use crate::html::palette::MOST;

/// Width of a chart in units of its drawing; a letter is 13 high.
pub(crate) const WIDTH: f64 = 440.0;
/// Where what is drawn between axes ends at the right, at the top and at the bottom, unless a chart needs other room.
pub(crate) const RIGHT: f64 = WIDTH - 14.0;
pub(crate) const TOP: f64 = 12.0;
pub(crate) const BOTTOM: f64 = 232.0;
/// The shapes of markers around their middle, one for each colour.
const MARKERS: [&str; MOST] = [
    "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0Z",
    "M-4,-4H4V4H-4Z",
    "M0,-5.5L5.2,4H-5.2Z",
    "M0,-5.8L5.8,0L0,5.8L-5.8,0Z",
    "M0,5.5L5.2,-4H-5.2Z",
    "M-1.6,-5.5H1.6V-1.6H5.5V1.6H1.6V5.5H-1.6V1.6H-5.5V-1.6H-1.6Z",
    "M-5,-5L-2.5,-5L0,-2.2L2.5,-5L5,-5L2,0L5,5L2.5,5L0,2.2L-2.5,5L-5,5L-2,0Z",
    "M-5.5,-2.2H5.5V2.2H-5.5Z",
];

/// A drawing under way.
pub(crate) struct Chart {
    /// Its name in the page's own references.
    pub(crate) id: String,
    /// What it shows.
    pub(crate) title: String,
    /// Of what, where the page has several such charts.
    pub(crate) of: String,
    /// What is to be seen in it, for those who do not see it.
    pub(crate) description: String,
    pub(crate) height: f64,
    pub(crate) svg: String,
}

impl Chart {
    /// The chart, with what stands between its title and the drawing, and its figures.
    pub(crate) fn figure(&self, above: &str, table: &Table) -> String {
        let Self { id, height, .. } = self;
        let (title, description) = (escape(&self.title), escape(&self.description));
        let name = match &*self.of {
            "" => title.clone(),
            of => format!("{title}: {}", escape(of)),
        };
        format!(
            "<figure>\n<figcaption>{title}</figcaption>\n{above}\
             <svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-title\" \
             aria-describedby=\"{id}-description\">\n<title id=\"{id}-title\">{name}</title>\n\
             <desc id=\"{id}-description\">{description}</desc>\n{}</svg>\n\
             <details><summary>Figures of this chart</summary>\n{}</details>\n</figure>\n",
            self.svg,
            table.html()
        )
    }
}

/// The marker of a series.
pub(crate) fn marker(svg: &mut String, (x, y): (f64, f64), series: usize) {
    let (shape, class) = (MARKERS[series % MOST], colour(series));
    _ = writeln!(
        svg,
        "<path class=\"mark {class}\" transform=\"translate({x:.1},{y:.1})\" d=\"{shape}\"/>"
    );
}

/// The class that gives what is drawn of a series its colour.
pub(crate) fn colour(series: usize) -> String {
    format!("c{}", 1 + series % MOST)
}

/// An upright axis of shares from 0 to 1, with its lines.
pub(crate) fn shares(
    svg: &mut String,
    (left, right): (f64, f64),
    (top, bottom): (f64, f64),
    most: f64,
) -> Axis {
    let step = if most > 0.5 { 25 } else { 10 };
    let high = (100.0 * most / f64::from(step)).ceil().max(1.0) as u32 * step;
    let axis = Axis {
        from: bottom,
        to: top,
        low: 0.0,
        high: f64::from(high) / 100.0,
    };
    for percent in (0..=high).step_by(step as usize) {
        let height = axis.at(f64::from(percent) / 100.0);
        line(svg, (left, height), (right, height), "class=\"grid\"");
        label(
            svg,
            (left - 6.0, height + 4.0),
            "end",
            &format!("{percent} %"),
        );
    }
    axis
}

/// Values of τ to mark, from 1 to at least `most`.
pub(crate) fn taus(most: f64) -> Vec<f64> {
    let high = (most.ceil() as u32).max(2);
    let step = (high - 1).div_ceil(8);
    let last = 1 + (high - 1).div_ceil(step) * step;
    (1..=last).step_by(step as usize).map(f64::from).collect()
}
