//! Weights of slots that depend on how the drafter fares.
use crate::row::JudgedRow;

/// Of some positions: the drafter's probability of the right token, and whether its most likely one is that.
pub(super) type Preview = std::collections::BTreeMap<usize, (f32, bool)>;

/// What `rows` were found to be: acceptance rate and agreement at each.
pub(super) fn preview(rows: &[JudgedRow], found: &[[f32; 2]]) -> Preview {
    let pairs = rows.iter().zip(found);
    pairs
        .map(|(row, [alpha, correct])| (row.position, (*alpha, *correct > 0.5)))
        .collect()
}

/// `w_j = Σ_{m >= j} Π_{i <= m} q_i` over the slots of a block that count, with `q` mixed with certainty; those that do not count
/// are certain, and add nothing.
pub(super) fn by_reach(rows: &mut [JudgedRow], seen: &Preview, slots: usize, certainty: f32) {
    for of_block in rows.chunk_by_mut(|one, other| one.position / slots == other.position / slots) {
        let block = of_block[0].position / slots;
        let found = |slot: usize| seen.get(&(block * slots + slot));
        let reached: Vec<f32> = (0..slots)
            .scan(1.0, |reached, slot| {
                let Some((q, _)) = found(slot) else {
                    return Some(0.0);
                };
                *reached *= (1.0 - certainty) * q + certainty;
                Some(*reached)
            })
            .collect();
        for row in of_block {
            row.weight = reached[row.position % slots..].iter().sum();
        }
    }
}

/// Leaves 1 up to the first slot of a block that errs, that one included.
pub(super) fn until_first_error(rows: &mut [JudgedRow], seen: &Preview, slots: usize) {
    for row in rows {
        let (block, slot) = (row.position / slots, row.position % slots);
        let right = |slot: usize| {
            seen.get(&(block * slots + slot))
                .is_none_or(|(_, right)| *right)
        };
        row.weight = f32::from(u8::from((0..slot).all(right)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<JudgedRow> {
        let row = |position| JudgedRow {
            step: 0,
            position,
            teacher: 0,
            weight: 1.0,
        };
        [0, 1, 2, 3, 4].map(row).to_vec()
    }

    fn weights(rows: &[JudgedRow]) -> Vec<f32> {
        rows.iter().map(|row| row.weight).collect()
    }

    #[test]
    fn d_pace_weighs_a_slot_by_how_far_decoders_get_with_it() {
        let seen = Preview::from([
            (0, (0.5, true)),
            (1, (0.0, false)),
            (2, (1.0, true)),
            (3, (1.0, true)),
            (4, (0.5, true)),
        ]);
        let mut judged = rows();
        by_reach(&mut judged, &seen, 3, 0.5);
        // q = 0.75, 0.5, 1: products 0.75, 0.375, 0.375. Then 1, 0.75 and a slot that does not count.
        assert_eq!(weights(&judged), [1.5, 0.75, 0.375, 1.75, 0.75]);
        // A gap before a slot that counts changes nothing for it.
        let mut behind = vec![rows()[0], rows()[2]];
        let seen = Preview::from([(0, (0.0, true)), (2, (1.0, true))]);
        by_reach(&mut behind, &seen, 3, 0.5);
        assert_eq!(weights(&behind), [1.0, 0.5]);
    }

    #[test]
    fn auf_judges_up_to_the_first_error() {
        let seen = Preview::from([
            (0, (0.5, true)),
            (1, (0.0, false)),
            (2, (1.0, true)),
            (3, (0.1, false)),
            (4, (0.5, true)),
        ]);
        let mut judged = rows();
        until_first_error(&mut judged, &seen, 3);
        assert_eq!(weights(&judged), [1.0, 1.0, 0.0, 1.0, 0.0]);
    }
}
