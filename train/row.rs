/// One position to be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedRow {
    /// Which of the hidden states: the draft step, or the head.
    pub step: usize,
    /// Row of that step's hidden states.
    pub position: usize,
    /// Row of the target's last hidden states, or of the labels, that judges it.
    pub teacher: usize,
    /// Factor on its loss.
    pub weight: f32,
}

/// Rows with their weights times `factor`.
pub(crate) fn times(rows: &[JudgedRow], factor: f32) -> Vec<JudgedRow> {
    let weighed = rows.iter().map(|row| JudgedRow {
        weight: row.weight * factor,
        ..*row
    });
    weighed.collect()
}

/// The teacher's positions of some rows without repetition, and for each row its place among them. Rows of the same
/// position stand together.
pub(crate) fn distinct(rows: &[JudgedRow]) -> (Vec<usize>, Vec<usize>) {
    let mut distinct: Vec<usize> = Vec::new();
    let of = rows.iter().map(|row| {
        if distinct.last() != Some(&row.teacher) {
            distinct.push(row.teacher);
        }
        distinct.len() - 1
    });
    let of = of.collect();
    (distinct, of)
}
