//! Whether a drafter that was written and read back is the one that was trained.

use anyhow::{Context as _, Result, bail};
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_models::Distribution;

use crate::families::family::Writing;
use crate::families::trained::Trained;
use crate::runtime::decoded::Decoded;
use crate::stages::export::ground::{Drawn, Ground};

/// Share of the trained drafter's accepted tokens that the exported one must keep when its weights were rounded.
const KEPT_WHEN_ROUNDED: f64 = 0.8;
/// Tokens that it may lose whatever that share is, in roots of their number: of a few tokens chance takes more than a share.
const LOST_BY_CHANCE: f64 = 2.0;
/// Largest difference between two probabilities that are the same, relative to the larger one: devices may add in any
/// order.
const SAME: f32 = 1e-3;
/// Seeds of what is drawn. Of two drafters that are the same, but for the order of sums, one draw in some ten thousand falls between the
/// probabilities of the one and of the other; hardly from both seeds.
const SEEDS: [u64; 2] = [0, 1];

/// Fails unless the drafter that was read back is `trained`, rounded: every tensor bit for bit, the vocabulary, the
/// captured layers, and the probabilities of what it drafts on `ground`, which show a setting that no tensor shows.
pub(super) fn verify(
    ground: &mut dyn Ground,
    (trained, read_back): (&dyn Trained, &dyn Trained),
    writing: &Writing,
) -> Result<()> {
    let rounded = trained.rounded(writing.dtype)?;
    let place = writing.folder.display();
    let same = check_tensors(&rounded.tensors(), &read_back.tensors());
    let complete = same.with_context(|| format!("the drafter in `{place}`"))?;
    if read_back.vocabulary() != trained.vocabulary() {
        bail!("the drafter in `{place}` has another vocabulary than the trained one");
    }
    let (expected, found) = (trained.capture()?, read_back.capture()?);
    if expected != found {
        bail!(
            "the drafter in `{place}`: captured layers: expected {:?}, found {:?}",
            expected.layers,
            found.layers
        );
    }
    // A head that was written out has been rounded, and the target's own has not.
    if !complete {
        return Ok(());
    }
    let both = |seed| {
        let expected = ground.drawn(rounded.as_ref(), seed)?;
        Ok([expected, ground.drawn(read_back, seed)?])
    };
    if draft_alike(both)? {
        return Ok(());
    }
    bail!(
        "the drafter in `{place}` drafts other tokens than the trained one with its weights rounded"
    )
}

/// Whether what two drafters have `drawn` from one of the seeds is the same.
fn draft_alike(mut drawn: impl FnMut(u64) -> Result<[Drawn; 2]>) -> Result<bool> {
    for seed in SEEDS {
        let [expected, found] = drawn(seed)?;
        if same_drafts(&expected, &found) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Fails unless every tensor of `expected` is in `found`, bit for bit. Says whether these are all; a head that a layout
/// wants written out may be more.
fn check_tensors(expected: &[NamedTensor], found: &[NamedTensor]) -> Result<bool> {
    let of = |name: &str| found.iter().find(|tensor| tensor.name == name);
    for tensor in expected {
        match of(&tensor.name) {
            None => bail!("tensor `{}` is missing", tensor.name),
            Some(found) if found != tensor => {
                bail!("tensor `{}` is not the one that was trained", tensor.name)
            }
            Some(_) => {}
        }
    }
    let known = |name: &str| name == "lm_head.weight" || expected.iter().any(|t| t.name == name);
    if let Some(other) = found.iter().find(|tensor| !known(&tensor.name)) {
        bail!("tensor `{}` was not trained", other.name);
    }
    Ok(found.len() == expected.len())
}

fn same_drafts(expected: &Drawn, found: &Drawn) -> bool {
    let near = |a: &f32, b: &f32| (a - b).abs() <= SAME * a.max(*b) + f32::MIN_POSITIVE;
    let same = |(a, b): (&Distribution, &Distribution)| {
        let mut pairs = a.probabilities.iter().zip(&b.probabilities);
        a.probabilities.len() == b.probabilities.len() && pairs.all(|(a, b)| near(a, b))
    };
    let mut pairs = expected.distributions.iter().zip(&found.distributions);
    expected.drafts == found.drafts
        && expected.distributions.len() == found.distributions.len()
        && pairs.all(same)
}

/// In f32 the two drafters are the same; rounded weights may change a few drafts, but not most of them.
pub(super) fn compare(trained: &Decoded, exported: &Decoded, dtype: DType) -> Result<()> {
    let same = match dtype {
        DType::F32 => trained == exported,
        _ => {
            let all = trained.total() as f64;
            let by_chance = all - LOST_BY_CHANCE * all.sqrt();
            exported.total() as f64 >= by_chance.min(KEPT_WHEN_ROUNDED * all)
        }
    };
    if same {
        Ok(())
    } else {
        bail!(
            "the exported drafter drafts worse than the trained one: τ {:.3}, expected {:.3}; try `--set export.dtype=f32`",
            exported.tau(),
            trained.tau()
        )
    }
}

#[cfg(test)]
mod tests;
