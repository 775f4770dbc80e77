//! The passes that a decoder is expected to take over a text, and what each draft step saves of them.
//!
//! A pass that starts behind place `i` keeps at least `l` of its steps with probability `S_i(l) = Π_{k < l} α_{i,k}` and is followed
//! by one behind place `i + 1 + l`. So `W_i = 1 + W_{i+1} + Σ_{l >= 1} S_i(l) (W_{i+1+l} - W_{i+l})` passes are expected from there
//! on, none behind the last place. As many tokens come of it whatever the drafter is, so that the fewest passes are the highest τ.
//! With `v_i`, how likely a pass starts behind place `i`,
//!
//! `-∂W_0 / ∂ log α_{i,k} = v_i Σ_{l > k} S_i(l) (W_{i+l} - W_{i+1+l})`:
//!
//! a step counts by how likely decoders stand before it, and by what is saved where they get beyond it.
use std::collections::BTreeMap;

use crate::row::JudgedRow;

/// What is expected of a run of places.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExpectedPasses {
    /// The passes that are expected over all of it.
    pub(crate) passes: f64,
    /// For each place and step the passes saved for each unit of `log α`.
    pub(crate) saved: Vec<Vec<f64>>,
}

/// What is expected of a run of places, where `kept` says of each place how likely each step of a draft behind it is kept once all
/// before it are.
pub(crate) fn expected_passes(kept: &[Vec<f64>]) -> ExpectedPasses {
    let places = kept.len();
    let longest = kept.iter().map(Vec::len).max().unwrap_or(0);
    // How likely so many steps are kept, from one on.
    let reached: Vec<Vec<f64>> = (kept.iter())
        .map(|steps| {
            let product = |so_far: &mut f64, kept: &f64| {
                *so_far *= kept;
                Some(*so_far)
            };
            steps.iter().scan(1.0, product).collect()
        })
        .collect();
    let mut left = vec![0.0; places + longest + 2];
    // What a pass saves that gets beyond each of its steps.
    let mut worth: Vec<Vec<f64>> = vec![Vec::new(); places];
    for place in (0..places).rev() {
        let steps = reached[place].iter().zip(place + 1..);
        worth[place] = steps
            .map(|(reached, next)| reached * (left[next] - left[next + 1]))
            .collect();
        left[place] = 1.0 + left[place + 1] - worth[place].iter().sum::<f64>();
    }
    let mut starts = vec![0.0; places + longest + 2];
    starts[0] = 1.0;
    for (place, reached) in reached.iter().enumerate() {
        let mut so_many = 1.0;
        for (next, &more) in (place + 1..).zip(reached) {
            starts[next] += starts[place] * (so_many - more);
            so_many = more;
        }
        starts[place + 1 + reached.len()] += starts[place] * so_many;
    }
    let saved = worth.iter().zip(&starts).map(|(worth, start)| {
        let beyond = |step| start * worth[step..].iter().sum::<f64>();
        (0..worth.len()).map(beyond).collect()
    });
    ExpectedPasses {
        passes: left[0],
        saved: saved.collect(),
    }
}

/// Weighs `rows` by the passes that they save, with the acceptance rates that were `found` mixed with certainty. Positions side by
/// side are a text; those where something was `missed`, by step and position, belong to it and keep nothing there. A step that would
/// better be rejected, since decoders fare worse behind it, counts nothing.
pub(crate) fn by_passes(
    rows: &mut [JudgedRow],
    found: &[[f32; 2]],
    missed: &[(usize, usize)],
    certainty: f64,
) {
    let judged = rows.iter().map(|row| (row.step, row.position));
    let steps = judged.clone().chain(missed.iter().copied());
    let most = steps.clone().map(|(step, _)| step + 1).max().unwrap_or(0);
    let mut kept: BTreeMap<usize, Vec<f64>> = steps
        .map(|(_, position)| (position, vec![0.0; most]))
        .collect();
    for ((step, position), [alpha, _]) in judged.zip(found) {
        if let Some(kept) = kept.get_mut(&position) {
            kept[step] = (1.0 - certainty) * f64::from(*alpha) + certainty;
        }
    }
    let places: Vec<(usize, Vec<f64>)> = kept.into_iter().collect();
    let mut saved: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for run in places.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
        let kept: Vec<Vec<f64>> = run.iter().map(|(_, kept)| kept.clone()).collect();
        let positions = run.iter().map(|(position, _)| *position);
        saved.extend(positions.zip(expected_passes(&kept).saved));
    }
    for row in rows {
        row.weight = saved[&row.position][row.step].max(0.0) as f32;
    }
}

#[cfg(test)]
mod tests;
